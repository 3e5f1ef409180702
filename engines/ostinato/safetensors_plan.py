"""Which tensors of a model folder make which parameter, and how its experts come into the store.

transformers says it (its conversion mapping), so a family that it can load needs no code here.
"""

import copy
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

from engines.ostinato.checkpoint import Checkpoint, natural
from engines.ostinato.errors import SetupError
from engines.ostinato.packing import Pack
from engines.ostinato.store import ExpertStore

Sources = list[tuple[str | None, str]]
"""The stored tensors of one parameter: (pattern of the converter that matched, name)."""


class SafetensorsPlan:
    """The parameters of ``model`` in ``checkpoint``."""

    def __init__(self, model: PreTrainedModel, checkpoint: Checkpoint) -> None:
        self._model, self._checkpoint = model, checkpoint
        transforms = get_model_conversion_mapping(model)
        self._converters = [item for item in transforms if isinstance(item, WeightConverter)]
        renamings = [item for item in transforms if isinstance(item, WeightRenaming)]
        parameters = model.state_dict()
        self._sources: dict[str, Sources] = defaultdict(list)
        for name in sorted(checkpoint, key=natural):
            target, pattern = rename_source_key(
                name, renamings, self._converters, model.base_model_prefix, parameters
            )
            if pattern is None and target not in parameters and name in parameters:
                target = name  # a renaming meant for another file format
            self._sources[target].append((pattern, name))
        self._threads = min(16, os.cpu_count() or 1)

    def dense(self, experts: Mapping[str, nn.Module]) -> Iterator[str]:
        """What the folder has for anything but the experts, by the model's names."""
        for target in self._sources:
            if not any(target.startswith(f"{prefix}.") for prefix in experts):
                yield target

    def nbytes(self, target: str) -> int:
        """What it takes in the files."""
        return sum(self._checkpoint[name].nbytes for _, name in self._sources[target])

    def fill(self, store: ExpertStore, layer: int, prefix: str, module: nn.Module) -> int:
        """Bring one layer's experts into the store; return the bytes read."""
        own = {target: found for target, found in self._sources.items() if target.startswith(f"{prefix}.")}
        if not own:
            raise SetupError(f"{self._checkpoint.folder} has no weights for {prefix}")
        pack = Pack(store, layer, module)
        jobs: list[Callable[[], None]] = []
        for target, sources in own.items():
            part = target.removeprefix(f"{prefix}.")
            if matrices := self._one_by_one(sources, module):
                jobs += [
                    lambda e=e, name=name, matrix=matrix: pack.matrix(e, matrix, self._checkpoint, name)  # type: ignore[misc]
                    for matrix, names in matrices.items()
                    for e, name in enumerate(names)
                ]
            else:
                for tensor in self.read(target).values():
                    pack.stacked(part, tensor)
        with ThreadPoolExecutor(self._threads) as pool:
            list(pool.map(lambda job: job(), jobs))
        pack.check()
        return sum(map(self.nbytes, own))

    def _one_by_one(self, sources: Sources, module: Any) -> dict[str, list[str]] | None:
        """Matrix → its tensor of each expert, where an expert's matrices are stored separately and as they are."""
        patterns = list(dict.fromkeys(pattern for pattern, _ in sources))
        converter = next((c for c in self._converters if patterns[0] in c.source_patterns), None)
        kinds = {type(operation).__name__ for operation in converter.operations} if converter else set()
        if "MergeModulelist" not in kinds or not kinds <= {"MergeModulelist", "Concatenate"}:
            return None
        if module.is_transposed or not module.is_concatenated:
            return None
        names = ["gate", "up"] if len(patterns) == 2 else ["down"]
        assert converter is not None
        matrices = {
            matrix: [name for found, name in sources if found == pattern]
            for matrix, pattern in zip(names, converter.source_patterns, strict=True)
        }
        for matrix, stored in matrices.items():
            if len(stored) != module.num_experts:  # their order says which is whose
                raise SetupError(
                    f"{self._checkpoint.folder} has {matrix} for {len(stored)} of {module.num_experts} experts of "
                    f"one layer ({stored[0] if stored else sources[0][1]} …); download the model again"
                )
        return matrices

    def read(self, target: str) -> dict[str, Tensor]:
        """The finished parameters that its stored tensors make, by name."""
        sources = self._sources[target]
        pattern = sources[0][0]
        if pattern is None:
            return {target: self._checkpoint.tensor(sources[0][1])}
        found = next(converter for converter in self._converters if pattern in converter.source_patterns)
        converter = copy.deepcopy(found)
        for matched, name in sources:
            assert matched is not None
            reader: Any = lambda name=name: self._checkpoint.tensor(name)  # noqa: E731 - what add_tensor wants
            converter.add_tensor(target, name, matched, reader)
        made = converter.convert(target, model=self._model, config=self._model.config)
        return {name: tensor[0] if isinstance(tensor, list) else tensor for name, tensor in made.items()}
