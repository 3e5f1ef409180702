"""Every file in ``conf/experiment`` and ``conf/tune``: its rows compose and build what a run is made of."""

from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path

import pytest
import yaml
from hydra import compose
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from engines.container import spec
from engines.dialects.registry import dialect
from engines.forcing.registry import _WAYS as WAYS
from engines.placeholders import used_names
from engines.settings import EngineSettings
from engines.state import keeps_state
from replay.config import CONF, Config, checked, row_folder, unused_option
from replay.run import Run
from workloads.load import load, split_of
from workloads.presets import NAMES as PRESETS
from workloads.sample_paths import TOKENIZER
from workloads.session import Session
from workloads.settings import WorkloadSettings

EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))
TUNES = sorted(path.stem for path in (CONF / "tune").glob("*.yaml"))
SEEDS = {
    "table3", "table4", "table7", "one_gpu", "input_length", "ablation", "thresholds", "capacity", "iso_vram",
    "wisp_allocation", "atsinfer_throughput", "atsinfer_pressure", "adr_build_ab", "adr_cache_sizes",
    "h200_llamacpp", "ci_regression", "quickstart",
}  # fmt: skip
PAPERS = ["table3", "table4", "table7", "one_gpu", "input_length", "thresholds", "capacity"]
FOLDERS = ("paper", "h200", "adr", "atsinfer_paper")
"""Below ``conf/engine``: engines as an experiment needs them."""

Row = tuple[str, ...]


pytestmark = pytest.mark.usefixtures("hydra")


@cache
def parameters(*words: str) -> tuple[tuple[str, ...], ...]:
    """What each parameter of a sweep is set to, in turn, as Hydra's basic sweeper reads the file."""
    swept = compose("config", list(words), return_hydra_config=True).hydra.sweeper.params
    overrides = OverridesParser.create().parse_overrides([f"{key}={value}" for key, value in swept.items()])
    return tuple(
        tuple(f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator())
        if override.is_sweep_override()
        else (str(override.input_line),)
        for override in overrides
    )


def rows(*words: str) -> list[Row]:
    """Rows in which every value of every parameter is found; all of them take too long to compose."""
    swept = parameters(*words)
    return [(*words, *(values[n % len(values)] for values in swept)) for n in range(max(map(len, swept)))]


@cache
def composed(row: Row) -> Config:
    return checked(compose("config", list(row)))


@cache
def sessions(preset: str, seed: int) -> tuple[Session, ...]:
    settings = WorkloadSettings(name=preset, format="synthetic", preset=preset, seed=seed)
    return load(settings, TOKENIZER).sessions


def every_row(names: list[str] = EXPERIMENTS) -> Iterator[tuple[str, Row, Config]]:
    for name in names:
        for row in rows(f"+experiment={name}"):
            yield name, row, composed(row)


def assert_every_option_is_used(row: Row, engine: EngineSettings) -> None:
    if engine.name != "ostinato":  # a placement's settings are options that its text is made of
        assert set(engine.options) <= used_names(engine)
        assert unused_option([word.lstrip("+") for word in row], engine) is None


def test_the_experiments_of_the_seeds_are_there() -> None:
    assert set(EXPERIMENTS) == SEEDS


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_row_builds_what_a_run_is_made_of(name: str, tmp_path: Path) -> None:
    made = [(row, config) for _, row, config in every_row([name])]
    assert {config.name for _, config in made} == {name}
    for row, config in made:
        engine = config.engine
        run = Run(
            engine=engine,
            workload=config.workload,
            model=config.model,
            folder=tmp_path,
            repeat=config.repeat,
            arrival=config.arrival,
            order=config.order,
            pressure=config.pressure,
            tune=config.tune,
        )
        assert run.title
        assert dialect(engine.dialect).name == engine.dialect
        assert engine.forcing in WAYS
        assert_every_option_is_used(row, engine)
        if engine.launch == "container":
            engine.container.image = engine.container.image or "mine:1"
            place = spec.Place(
                name="c", port=8123, labels={}, user=(1000, 1000), model="/m", state=keeps_state(engine)
            )
            assert not any("{" in word for word in spec.arguments(engine, place)["command"])


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_row_has_a_folder_of_its_own(name: str) -> None:
    engines = {row[1 + at]: config.engine.name for _, row, config in every_row([name]) for at in engine_at(name)}
    everything = list(product(*parameters(f"+experiment={name}")))
    folders = {row_folder(engines[row[at]], ",".join(row)) for row in everything for at in engine_at(name)}
    assert len(folders) == len(everything)


def engine_at(name: str) -> list[int]:
    """Which of the parameters is the engine."""
    return [at for at, values in enumerate(parameters(f"+experiment={name}")) if values[0].startswith("engine=")]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_longest_request_fits_the_context(name: str) -> None:
    for _, _, config in every_row([name]):
        workload = config.workload
        if workload.format != "synthetic" or workload.preset is None:
            continue
        chosen = sessions(workload.preset, workload.seed)[: workload.max_sessions]
        longest = max(
            Session(
                session_id="cut", source="", task_id=None, turns=session.turns[: workload.max_turns]
            ).longest_context
            for session in chosen
        )
        assert longest + config.arrival.distinct_prefix_tokens <= config.engine.context, (name, longest)


def test_engines_of_the_paper_have_its_context_and_threads() -> None:
    for name, _, config in every_row(PAPERS):
        assert config.engine.context == 98_304
        threads = 32 if name == "one_gpu" else 48
        assert threads in (config.engine.threads, int(config.engine.options.get("server_threads", 0)))
        assert config.arrival.concurrency == 1


def test_nothing_that_is_swept_is_on_held_out_sessions_where_something_is_chosen() -> None:
    tuned = [config for _, _, config in every_row() if config.tune.setting]
    assert tuned
    assert {split_of(config.workload) for config in tuned} == {"development"}


def test_tables_3_and_7_are_made_of_both_workloads_and_six_engines() -> None:
    assert parameters("+experiment=table3") == parameters("+experiment=table7")
    engines, workloads = parameters("+experiment=table3")
    assert len(engines) == 6
    assert workloads == ("workload=synthetic_swe_heldout", "workload=synthetic_tau2_heldout")


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_engine_of_an_experiment_belongs_to_one(folder: str) -> None:
    files = "".join(path.read_text() for path in (CONF / "experiment").glob("*.yaml"))
    for path in (CONF / "engine" / folder).glob("*.yaml"):
        assert f"{folder}/{path.stem}" in files
        row = (f"engine={folder}/{path.stem}",)
        assert_every_option_is_used(row, composed(row).engine)


def test_every_placement_of_an_experiment_builds_a_policy() -> None:
    registry = pytest.importorskip("engines.ostinato.placement.registry")
    specs = {config.engine.options["placement"] for _, row, config in every_row() if "placement=" in " ".join(row)}
    specs |= {composed(("+experiment=capacity",)).engine.options["placement"]}
    assert len(specs) >= 12, specs
    for one in specs:
        assert registry.policy(one)


@pytest.mark.parametrize("name", TUNES)
def test_a_tuning_sweeps_the_setting_that_it_chooses(name: str) -> None:
    written = yaml.safe_load((CONF / "tune" / f"{name}.yaml").read_text())
    assert written["tune"]["name"] == name
    places = written["tune"]["setting"].split(",")
    assert list(written["hydra"]["sweeper"]["params"]) == places
    engine = {
        "threads": "llamacpp",
        "ubatch": "llamacpp",
        "gpu_experts": "ktransformers",
        "cache_mib": "llamacpp_cache",
        "llamacpp_h200": "h200/llama_server",
    }
    words = (f"engine={engine.get(name, 'llamacpp_layers')}", "workload=synthetic_swe_development", f"+tune={name}")
    found = [composed(row) for row in rows(*words)]
    for place in places:
        values = {str(OmegaConf.select(OmegaConf.structured(config), place)) for config in found}
        assert len(values) > 1
    assert {config.tune.setting for config in found} == {",".join(places)}


def test_the_presets_of_the_workloads_exist() -> None:
    asked = {config.workload.preset for _, _, config in every_row()} - {None}
    assert asked <= set(PRESETS)
