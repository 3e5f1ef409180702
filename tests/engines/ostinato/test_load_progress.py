"""Loading says how far it is, at which rate, and not too often."""

from engines.ostinato.load_progress import Loading, amount

GIB = 1 << 30


def test_progress_is_said_every_two_seconds_and_at_the_end() -> None:
    said: list[str] = []
    now = iter([0.0, 1.0, 4.0, 5.0, 8.0, 8.5])
    loading = Loading(said.append, lambda: next(now))
    for done in (1, 8, 10, 16, 16):
        loading(done * GIB, 16 * GIB)
    assert said == [
        "loading the weights: 8.0 of 16.0 GiB, 2.0 GiB/s, 4 s left",
        "loaded 16.0 GiB at 2.0 GiB/s",
    ]


def test_a_small_model_is_no_zero() -> None:
    assert amount("page-locked", GIB // 64, 0.5) == "page-locked 0.016 GiB at 0.031 GiB/s"
