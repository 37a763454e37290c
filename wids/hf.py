"""A callback for Hugging Face's ``Trainer`` that resumes in mid-epoch (``pip install 'wids[hf]'``).

``Trainer(model, args, callbacks=[wids.hf.ResumeCallback()])`` with ``wids.resumable(loader)`` as its training loader
keeps the place of the loader in each checkpoint, and ``train(resume_from_checkpoint=...)`` goes on with the next batch.

Rules: only this module imports transformers. A state is the place after the last optimizer step that the Trainer has
counted, not after the batches that it has drawn for the next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wids.errors import DependencyError, InputError, a_kind
from wids.loaders import ResumableLoader, check_length

try:
    from transformers.trainer_callback import ExportableState, TrainerCallback
except ModuleNotFoundError as _error:
    raise DependencyError("transformers is not installed; install it with: pip install 'wids[hf]'") from _error

if TYPE_CHECKING:
    from transformers import TrainerState


class ResumeCallback(TrainerCallback, ExportableState):
    """Keeps the place of ``wids.resumable(loader)`` in the checkpoints of Hugging Face's ``Trainer``.

    The Trainer's training loader is one that ``get_train_dataloader`` of a subclass returns. The place is in
    ``trainer_state.json``, the last file of a checkpoint. A resumed run has the optimizer steps of one that was not
    stopped, also with gradient accumulation over a number of batches that an epoch is no multiple of.

    Raises:
        InputError: when training begins: the training loader is not resumable, or the checkpoint has no place of it.
        StateError: the checkpoint's place belongs to another dataset, seed or setting.
    """

    place: dict[str, Any] | None = None
    _loader: ResumableLoader | None = None
    _trainer: TrainerState | None = None
    _step = -1  # whose end `place` is
    _is_first = False  # the next step is the first of an epoch

    def state(self) -> dict[str, Any]:
        """The state that the Trainer writes to a checkpoint."""
        self._note()
        return {"args": {}, "attributes": {"place": self.place}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """Load the place of the checkpoint that training resumes from."""
        loader = objects.get("train_dataloader")
        if not isinstance(loader, ResumableLoader):
            raise InputError(
                f"the Trainer's training loader is {a_kind(loader)}, whose place is not known; return "
                "wids.resumable(loader) from get_train_dataloader of a subclass of the Trainer"
            )
        if state.global_step:
            kept = state.stateful_callbacks.get(type(self).__name__)
            if kept is None:
                raise InputError(
                    f"the checkpoint of step {state.global_step} has no place of the loader: it was written without "
                    f"{type(self).__name__}; begin anew with its weights"
                )
            loader.load_state_dict(kept["attributes"]["place"])
            if args.ignore_data_skip and _has_end(loader) and loader.batches_done:
                raise InputError(
                    "the Trainer of Hugging Face counts the batches of this epoch from 0, and the loader's state is "
                    f"after {loader.batches_done}: its last optimizer step would miss batches. Leave "
                    "ignore_data_skip=True out"
                )
        self._loader, self._trainer, self._step = loader, state, -1
        self._note()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """Note that the next step is the first of an epoch."""
        self._is_first = True

    def on_step_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """Compare the length of an epoch with that of the first; the loader has begun it by now."""
        if self._is_first and self._loader is not None:
            check_length(self._loader, "the Trainer of Hugging Face")
        self._is_first = False

    def on_step_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        """Note the place after an optimizer step; batches of the next are drawn together, before it begins."""
        self._note()

    def _note(self) -> None:
        if self._loader is not None and self._trainer is not None and self._trainer.global_step != self._step:
            self._step, self.place = self._trainer.global_step, self._loader.state_dict()


def _has_end(loader: ResumableLoader) -> bool:
    """True if the epochs of a loader end."""
    try:
        len(loader)
    except TypeError:
        return False
    return True
