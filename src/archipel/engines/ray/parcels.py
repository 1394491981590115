# SPDX-License-Identifier: Apache-2.0
"""What travels between the main process and workers that share no memory with it.

Both have a `Memory` of one form. Before a message, what the main process wrote for it is copied
into that of the worker; after it, what the worker wrote is copied back. What every share is sent is
put into Ray's object store once, and each machine fetches it once.

The job, data and all, is pickled: code of the run's owner, on the owner's machines. It is no format
between institutions.
"""

from __future__ import annotations

import io
import sys
import sysconfig
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from archipel.data.federation import Federation
from archipel.engines.local.memory import Memory
from archipel.engines.local.pool import Json
from archipel.errors import ArchipelError
from archipel.rng import Ints
from archipel.tree import leaves

if TYPE_CHECKING:
    from archipel.engines.local.share import Job

Arrays = list[NDArray[Any]]
Parcel = Mapping[str, Any]  # names of parts of a memory -> arrays

_MAPPED = 1 << 20  # bytes: larger tensors of a job are read where the object store has them


# -- the job, once -----------------------------------------------------------------------------


def packed(thing: Any) -> tuple[bytes, Arrays]:
    """An object, and apart from it the numbers of its large tensors, which need no copy to read."""
    from ray import cloudpickle

    _by_value(cloudpickle)

    class Packer(cloudpickle.CloudPickler):  # type: ignore[misc]
        def reducer_override(self, found: Any) -> Any:
            if type(found) is Tensor and _large(found):
                return mapped, (found.numpy(),)
            if isinstance(found, type(torch.ops.aten)):
                return operators, (found.name,)
            return super().reducer_override(found)

    apart: list[Any] = []
    head = io.BytesIO()
    try:
        Packer(head, protocol=5, buffer_callback=apart.append).dump(thing)
    except Exception as error:
        raise ArchipelError(
            f"engine = 'ray': the algorithm, model or data holds what no other process can be "
            f"given ({type(error).__name__}: {error}); make it where it is used, or take the "
            "local engine."
        ) from error
    return head.getvalue(), [np.frombuffer(part.raw(), np.uint8) for part in apart]


def unpacked(head: bytes, apart: Arrays) -> Any:
    """What was packed; its large tensors lie where `apart` does, and are read only."""
    from ray import cloudpickle

    return cloudpickle.loads(head, buffers=apart)


def mapped(array: NDArray[Any]) -> Tensor:
    """A tensor over an array that may be read only."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.from_numpy(array)


def operators(name: str) -> Any:
    """Torch's operators of a namespace, which are no object of their own."""
    return getattr(torch.ops, name)


def _large(tensor: Tensor) -> bool:
    plain = tensor.device.type == "cpu" and not tensor.requires_grad and tensor.is_contiguous()
    return plain and tensor.dtype != torch.bfloat16 and tensor.nbytes >= _MAPPED


def _by_value(cloudpickle: Any) -> None:
    """Have the user's own modules travel as they are: no other machine can import them."""
    places = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    installed = tuple({str(Path(place).resolve()) for place in places} | {*_site()})
    for name, module in [*sys.modules.items()]:
        file = getattr(module, "__file__", None)
        if not file or name.partition(".")[0] in ("archipel", "__main__", "ray"):
            continue
        if not str(Path(file).resolve()).startswith(installed):
            cloudpickle.register_pickle_by_value(module)


def _site() -> list[str]:
    """Where packages are installed that this process imports."""
    return [str(Path(path).resolve()) for path in sys.path if path.endswith("-packages")]


# -- messages ----------------------------------------------------------------------------------


def begins(job: Job, message: Json) -> bool:
    """Whether a message is the first of a round, or of an evaluation."""
    return message["do"] in ("outputs", "own outputs") or (
        message["do"] != "undo" and (job.boxes.peer or message["number"] == 0)
    )


def parties_of(message: Json) -> Ints:
    """The parties of a share, by its first message."""
    if "ids" in message:
        return np.array(message["ids"], np.int64)
    return np.arange(message["first"], message["last"])


def to_all(job: Job, memory: Memory, message: Json) -> dict[str, Arrays]:
    """What every share is sent with a message."""
    if message["do"] in ("outputs", "own outputs"):
        return {"vector": _arrays([memory.vector]), "used": _arrays([memory.used])}
    if message["do"] == "undo" or job.boxes.peer:
        return {}
    number = int(message["number"])
    if number == 0:
        rows = len(message.get("older") or ())  # of shared states that some began from
        older = {"older": _arrays([leaf[:rows] for leaf in leaves(memory.sent.older)])}
        return {"shared": _arrays(leaves(memory.sent.shared)), **(older if rows else {})}
    each, box = _reply(job, memory, message)
    return {} if each else {"reply": _arrays(leaves(box.take()))}


def to_share(job: Job, memory: Memory, message: Json, first: Json) -> dict[str, Arrays]:
    """What one share is sent besides; `first` is the message that began it."""
    sent = {}
    if message is first and message["do"] != "outputs":
        sent["kept"] = _arrays(memory.kept.take(parties_of(first)))
    if message["do"] in ("round", "personal") and not job.boxes.peer and message["number"]:
        each, box = _reply(job, memory, message)
        if each:
            sent["reply"] = _arrays(leaves(box.take(first["places"])))
    return sent


def unload(job: Job, memory: Memory, message: Json, first: Json, sent: Parcel) -> None:
    """Put what came with a message where a share reads it."""
    for name, arrays in sent.items():
        found = [mapped(array) for array in arrays]
        if name == "kept":
            memory.kept.put(parties_of(first), found)
        elif name == "shared":
            for store, leaf in zip(leaves(memory.sent.shared), found, strict=True):
                store.copy_(leaf)
        elif name == "older":
            for store, leaf in zip(leaves(memory.sent.older), found, strict=True):
                store[: len(leaf)] = leaf
        elif name == "reply":
            each, box = _reply(job, memory, message)
            box.put(found, first["places"] if each else slice(None))
        else:
            getattr(memory, name).copy_(found[0])


def load(job: Job, memory: Memory, message: Json, first: Json, index: int) -> dict[str, Any]:
    """What a share brings back after a message."""
    do, returned = message["do"], memory.returned
    if do == "undo" or (do == "round" and job.boxes.peer):
        return {"kept": _arrays(memory.kept.take(parties_of(first)))}
    if do == "round":
        number = int(message["number"])
        sums = returned.sums[number].items()
        back: dict[str, Any] = {"sums": {ask: _arrays(leaves(by[index])) for ask, by in sums}}
        if (stack := returned.stacks[number]) is not None:
            back["stack"] = _arrays(leaves(stack.take(first["places"])))
        if number == len(job.anatomy.messages) - 1 or job.rows:
            back["kept"] = _arrays(memory.kept.take(parties_of(first)))
        return back
    if do == "personal" and message["number"] < len(job.anatomy.personal):
        asked = returned.asked[int(message["number"])]
        return {"asked": _arrays(leaves(asked.take(first["places"])))}
    rows = _output_rows(job.data, message, first)
    return {"outputs": _arrays([memory.outputs[rows]])}


def bring(job: Job, memory: Memory, message: Json, first: Json, index: int, back: Parcel) -> None:
    """Put what a share brought back where the main process reads it."""
    returned = memory.returned
    for name, arrays in back.items():
        if name == "sums":
            for ask, found in arrays.items():
                stored = leaves(returned.sums[int(message["number"])][ask][index])
                for store, part in zip(stored, found, strict=True):
                    store.copy_(mapped(part))
            continue
        found = [mapped(array) for array in arrays]
        if name == "kept":
            memory.kept.put(parties_of(first), found)
        elif name == "stack":
            stack = returned.stacks[int(message["number"])]
            assert stack is not None
            stack.put(found, first["places"])
        elif name == "asked":
            returned.asked[int(message["number"])].put(found, first["places"])
        else:
            memory.outputs[_output_rows(job.data, message, first)] = found[0]


def _reply(job: Job, memory: Memory, message: Json) -> tuple[bool, Any]:
    """Whether a message comes with a row to each party, and the box that it is in."""
    number, sent = int(message["number"]) - 1, memory.sent
    if message["do"] == "round":
        return job.anatomy.messages[number].each, sent.replies[number]
    return job.anatomy.personal[number].each, sent.advice[number]


def _output_rows(data: Federation, message: Json, first: Json) -> Any:
    """Where the outputs of a share's points are."""
    sizes = (data.n if message["split"] == "train" else data.n_test).numpy()[parties_of(first)]
    if isinstance(first["at"], int):
        return slice(first["at"], first["at"] + int(sizes.sum()))
    ranges = [np.arange(at, at + size) for at, size in zip(first["at"], sizes, strict=True)]
    return torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *ranges]))


def _arrays(tensors: Sequence[Tensor]) -> Arrays:
    return [tensor.numpy() for tensor in tensors]
