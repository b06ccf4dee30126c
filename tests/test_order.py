"""Long tests come first in each worker's row, and no test is lost or separated from those that share with it."""

from hypothesis import given
from hypothesis import strategies as some

from tests.order import LONG, rows

MODULES = some.lists(
    some.tuples(some.sampled_from([*LONG, "job", "face"]), some.integers(1, 30)), max_size=30
)  # fmt: skip


@given(MODULES, some.integers(1, 6))
def test_each_test_stands_in_one_row_and_long_modules_stay_together(
    modules: list[tuple[str, int]], workers: int
) -> None:
    tests = [
        (f"{folder}/test_{at}.py", number) for at, (folder, count) in enumerate(modules) for number in range(count)
    ]
    ordered = rows(tests, lambda test: test[0], workers)
    assert sorted(ordered) == sorted(tests)
    for name in {name for name, _ in tests if name.partition("/")[0] in LONG}:
        places = [at for at, test in enumerate(ordered) if test[0] == name]
        assert places == list(range(places[0], places[0] + len(places)))


def test_each_row_begins_with_a_long_module() -> None:
    tests = [(f"{folder}/test_it.py", number) for folder in ("face", "job", *LONG) for number in range(10)]
    ordered = rows(tests, lambda test: test[0], 4)
    size = len(tests) // 4
    assert [ordered[row * size][0].partition("/")[0] for row in range(4)] == list(LONG[:4])
