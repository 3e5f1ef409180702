"""Choosing a setting on development sessions (the ``tune`` group in ``conf/``).

A tuning is a sweep like any other: Hydra's basic sweeper tries every value, each is a run with records, and what is
chosen is read from the records (``analysis/tuning.py``). So a value that fails is a row with a status, an interrupted
tuning is resumed, any launcher spreads it, and the whole curve is there. A sampler that guesses the next value from
the last ones (Optuna) has none of this, and with the four values of an upload threshold six of its trials never tried
the best one.
"""

from dataclasses import dataclass

from workloads.load import split_of
from workloads.session import WorkloadError
from workloads.settings import WorkloadSettings
from workloads.split import DEVELOPMENT, SCREENING

TUNED_ON = (DEVELOPMENT, SCREENING)


@dataclass
class TuneSettings:
    """Plain and mutable because OmegaConf builds its schema from it; treated as read-only everywhere else."""

    name: str = "none"
    setting: str | None = None
    """What is chosen, as it is swept: ``engine.options.upload_threshold``; several with commas between them. None:
    nothing is."""


def refusal(tune: TuneSettings, workload: WorkloadSettings) -> str | None:
    """Why nothing may be chosen on these sessions, in one line; None when it may, or when nothing is tuned."""
    if tune.setting is None:
        return None
    try:
        split = split_of(workload)
    except WorkloadError as error:
        return str(error)
    if split in TUNED_ON:
        return None
    what = "names no split" if split is None else f"holds {split} sessions"
    return (
        f"tune={tune.name}: workload {workload.name} {what}, and settings are chosen on development sessions only; "
        "set workload=synthetic_swe_development, or workload=sessions workload.path=<the development.parquet that "
        "`prepare split` wrote>"
    )
