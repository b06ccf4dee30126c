"""Which losses are unsound, as an agent tells from those before."""

import pytest

from everstep.runtime.agent.evidence import LEAST, LossWatch

SPIKE = 3.0


def watch(losses: int = LEAST, loss: float = 2.0) -> LossWatch:
    loss_watch = LossWatch()
    for iteration in range(1, losses + 1):
        assert not loss_watch.doubt(iteration, {"loss": loss}, SPIKE)
    return loss_watch


@pytest.mark.parametrize("values", [{"loss": "nan"}, {"loss": 1.0, "grad_norm": "inf"}])
def test_a_figure_that_is_not_finite_is_unsound_from_the_first_iteration_on(values: dict[str, float | str]) -> None:
    assert "its" in LossWatch().doubt(1, values, 0.0)


def test_a_loss_far_above_the_median_of_those_before_is_a_spike() -> None:
    assert "above 3 times the median 2 " in watch().doubt(LEAST + 1, {"loss": 6.1}, SPIKE)
    assert not watch().doubt(LEAST + 1, {"loss": 5.9}, SPIKE)


def test_without_a_factor_or_with_few_losses_before_none_is_a_spike() -> None:
    assert not watch().doubt(LEAST + 1, {"loss": 1e9}, 0.0)
    assert not watch(LEAST - 1).doubt(LEAST, {"loss": 1e9}, SPIKE)


def test_a_spike_does_not_count_among_the_losses_before_nor_do_those_that_a_step_back_repeats() -> None:
    loss_watch = watch()
    for again in range(20):
        assert loss_watch.doubt(LEAST + 1, {"loss": 100.0}, SPIKE), again
        assert not loss_watch.doubt(LEAST, {"loss": 2.0}, SPIKE), again
    assert len(loss_watch._losses) == LEAST


def test_a_negative_loss_has_no_spikes() -> None:
    assert not watch(loss=-2.0).doubt(LEAST + 1, {"loss": 100.0}, SPIKE)
