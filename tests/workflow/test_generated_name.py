"""A name from `metadata.generateName`, as Kubernetes makes one."""

from everstep.runtime.workflow import check_name
from everstep.runtime.workflow.run.run_folder import generated_name


def test_a_long_base_is_cut_so_that_the_name_fits() -> None:
    name = generated_name("a" * 80)
    assert name.startswith("a" * 58)
    assert len(name) <= 63
    check_name(name)


def test_two_names_from_one_base_differ() -> None:
    assert generated_name("drill-").startswith("drill-")
    assert len({generated_name("drill-") for _ in range(20)}) > 15
