"""The workload a user asks for (the ``workload`` group in ``conf/``)."""

from dataclasses import dataclass


@dataclass
class WorkloadSettings:
    """Plain and mutable because OmegaConf builds its schema from it; treated as read-only everywhere else."""

    name: str
    """Shown in reports."""
    format: str
    """``sample`` (bundled), ``sessions`` (a rendered session file), ``synthetic``, a recorded format
    (`workloads.formats.registry`), or ``auto`` to tell the format from the file."""
    path: str | None = None
    """A file or folder of that format, or a data set of the Hugging Face hub (`workloads.hub`); not used by
    ``sample`` and ``synthetic``."""
    max_sessions: int | None = None
    """Replay only the first so many sessions."""
    max_turns: int | None = None
    """Cut each session after so many turns."""
    split: str | None = None
    """sessions: refuse a file that `prepare split` did not write as this split (``held_out``, ``development``, …)."""
    domain: str | None = None
    """tau2: a folder or file with the policies and tool schemas that result files leave out."""
    sessions: int = 4
    """synthetic: how many sessions."""
    turns: int = 12
    """synthetic: model calls a session."""
    seed: int = 0
    """synthetic, mooncake, weka: the seed of everything drawn."""
    block_size: int | None = None
    """mooncake, weka: tokens that a block hash stands for, where it is not the usual or the recorded number."""
    preset: str | None = None
    """synthetic: a named set of sessions (`workloads.presets`) instead of ``sessions`` and ``turns``."""
    chat_template: str | None = None
    """A jinja file to render recordings with instead of the tokenizer folder's own chat template."""
    on_prefix_break: str = "fail"
    """Where the chat template rewrites history: ``fail`` (drop the session, counted), ``replay`` (send the template's
    prompts) or ``bridge`` (append only)."""
    allow_template_loss: bool = False
    """Render although the chat template leaves out what a recording holds; counted among the losses."""
