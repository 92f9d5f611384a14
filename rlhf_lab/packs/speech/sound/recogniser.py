"""A recogniser of phones on audio: how well a clip says what it was asked to say.

It guards a reward on speech: what is optimised may grow steadier, more voiced and less intelligible. It reads samples
only, and so does not depend on what the truth of a world reads (codes, a renderer's parameters). A phone is three
states in a row, the pause is one; a state is a Gaussian of 13 mel-frequency cepstral coefficients and their slopes.
`recogniser_fit.py` fits them. Left out: the influence of neighbouring phones, a language model, mixtures of Gaussians.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rlhf_lab.core.errors import ArtifactError, DataError
from rlhf_lab.core.files import replacing
from rlhf_lab.core.media import Audio
from rlhf_lab.packs.speech.sound.audio import USABLE, loudest_dbfs
from rlhf_lab.packs.speech.sound.phone_models import Gaussians, observe
from rlhf_lab.packs.speech.sound.viterbi import JUMP, forced_path, free_path

PAUSE = "_"
"""Name of the pause. It may stand in wanted phones, and does not count there."""
STATES = 3
"""Of a phone: beginning, middle and end. A phone lasts at least 30 ms."""
FRAMES_AT_ONCE = 16384
"""Frames that are decoded together, so that some hundred states need about 50 MB."""


@dataclass(frozen=True)
class Intelligibility:
    """How well N clips say what was wanted.

    Attributes:
        phone_error_N: edit distance between the phones that are heard and those wanted, per wanted phone. 0 is all
            right; 1 is what silence has; it is more where wrong phones are added.
        margin_N: log-likelihood of the wanted phones minus that of what is heard, nats per frame of 10 ms: 0 where they
            are the same, else negative; −inf where the clip is too short for the wanted phones.
        heard: the phones that are heard, without pauses.
    """

    phone_error_N: NDArray[np.float64]
    margin_N: NDArray[np.float64]
    heard: list[list[str]]


@dataclass(frozen=True, eq=False)
class Recogniser:
    """Phones and the Gaussians of their states. Made by `fit_recogniser` or `Recogniser.load`.

    Attributes:
        phones: names without the pause.
        gaussians: of the pause's state, then of three states of each phone.
        entry_cost: what a path pays to begin a phone, nats. Without a cost, changes within a phone are heard as phones.
    """

    phones: tuple[str, ...]
    gaussians: Gaussians
    entry_cost: float

    def recognise(self, clips: Sequence[Audio]) -> list[list[str]]:
        """The phones that are heard in each clip, without pauses."""
        return self._heard_in(clips, self.hear([observe(clip) for clip in clips])[0])

    def _heard_in(self, clips: Sequence[Audio], heard: list[list[str]]) -> list[list[str]]:
        """Nothing in silent clips: relative to their loudest frame, they are as loud as any."""
        return [
            [] if loudest_dbfs(clip) < USABLE.silence_dbfs else phones
            for clip, phones in zip(clips, heard, strict=True)
        ]

    def compare(self, clips: Sequence[Audio], wanted: Sequence[Sequence[str]]) -> Intelligibility:
        """How well each clip says its wanted phones.

        Raises DataError for a phone that the recogniser does not know, and where no phone is wanted.
        """
        chains = self.indices(wanted)
        if len(clips) != len(chains):
            raise DataError(f"{len(clips)} clips and {len(chains)} sequences of phones; give each clip its own")
        observed = [observe(clip) for clip in clips]
        anything, free_N = self.hear(observed)
        heard = self._heard_in(clips, anything)
        forced_N = np.array([score for _, score in self.align(observed, chains)])
        errors = []
        for said, chain in zip(heard, chains, strict=True):
            asked = [self.phones[phone] for phone in chain]
            errors.append(edit_distance(said, asked) / len(asked))
        frames_N = np.array([len(rows_TD) for rows_TD in observed])
        # the wanted phones are one of the paths of free recognition: only rounding makes theirs more likely
        margin_N = np.minimum((forced_N - free_N) / frames_N, 0) if len(clips) else np.zeros(0)
        return Intelligibility(np.array(errors), margin_N, heard)

    def indices(self, wanted: Sequence[Sequence[str]]) -> list[list[int]]:
        """Places of phones in `phones`, pauses left out. Raises DataError as `compare` does."""
        place_of = {phone: place for place, phone in enumerate(self.phones)}
        chains = []
        for row, phones in enumerate(wanted):
            unknown = [phone for phone in phones if phone not in place_of and phone != PAUSE]
            if unknown:
                known = " ".join(self.phones)
                raise DataError(f"clip {row}: phone {unknown[0]!r} is not known; the recogniser was fitted to: {known}")
            chains.append([place_of[phone] for phone in phones if phone != PAUSE])
            if not chains[-1]:
                raise DataError(f"clip {row}: no phone is wanted; name at least one")
        return chains

    def hear(self, observed: Sequence[NDArray[np.float32]]) -> tuple[list[list[str]], NDArray[np.float64]]:
        """The phones heard in each clip's observations (T, D), and the log-likelihood of their path, (N,)."""
        states = 1 + STATES * len(self.phones)
        is_start_S = np.arange(states) % STATES == 1
        is_end_S = np.arange(states) % STATES == 0
        is_start_S[0] = True  # the pause is state 0 alone, and its own end
        entry_cost_S = np.full(states, self.entry_cost, np.float32)
        entry_cost_S[0] = 0
        heard: list[list[str]] = [[] for _ in observed]
        scores_N = np.zeros(len(observed))
        for rows in _batches(observed):
            lengths_B = np.array([len(observed[row]) for row in rows])
            logps_BTS = np.zeros((len(rows), lengths_B.max(), states), np.float32)
            for place, row in enumerate(rows):
                logps_BTS[place, : lengths_B[place]] = self.gaussians.logps(observed[row])
            path = free_path(logps_BTS, lengths_B, is_start_S, is_end_S, entry_cost_S)
            for place, row in enumerate(rows):
                states_T = path.state_BT[place, : lengths_B[place]]
                begins_T = path.came_BT[place, : lengths_B[place]] == JUMP
                begins_T[0] = True
                heard[row] = [self.phones[(state - 1) // STATES] for state in states_T[begins_T] if state]
                scores_N[row] = path.score_B[place]
        return heard, scores_N

    def align(
        self, observed: Sequence[NDArray[np.float32]], chains: Sequence[Sequence[int]]
    ) -> list[tuple[NDArray[np.int64], float]]:
        """The state of each frame of each clip when it says its phones, and the log-likelihood of that path.

        A pause may stand before, between and after phones. The log-likelihood is −inf where the clip is too short.
        """
        models = [_chain_states(chain) for chain in chains]
        aligned: list[tuple[NDArray[np.int64], float]] = [(np.zeros(0, np.int64), 0.0)] * len(observed)
        for rows in _batches(observed):
            lengths_B = np.array([len(observed[row]) for row in rows])
            ends_B = np.array([len(models[row]) - 1 for row in rows])
            shape = (len(rows), lengths_B.max(), ends_B.max() + 1)
            logps_BTS = np.full(shape, -np.inf, np.float32)
            may_skip_BS = np.zeros((len(rows), shape[2]), bool)
            for place, row in enumerate(rows):
                model = models[row]
                logps_TS = self.gaussians.logps(observed[row])
                logps_BTS[place, : lengths_B[place], : len(model)] = logps_TS[:, model]
                may_skip_BS[place, : len(model)] = model == 0
            path = forced_path(logps_BTS, lengths_B, may_skip_BS, ends_B)
            for place, row in enumerate(rows):
                states_T = models[row][path.state_BT[place, : lengths_B[place]]]
                score = float(path.score_B[place]) - self.entry_cost * len(chains[row])
                aligned[row] = (states_T, score)
        return aligned

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all that decides what is heard."""
        digest = sha256(repr((self.phones, self.entry_cost)).encode())
        for array in self.gaussians.arrays().values():
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def save(self, path: Path | str) -> None:
        """Write a .npz file of plain arrays: the whole file, or nothing."""
        with replacing(Path(path)) as temporary, temporary.open("wb") as handle:
            np.savez(
                handle,
                phones=np.array(self.phones),
                entry_cost=np.float64(self.entry_cost),
                whitening_DD=self.gaussians.whitening_DD,
                means_SD=self.gaussians.means_SD,
                variances_SD=self.gaussians.variances_SD,
            )

    @classmethod
    def load(cls, path: Path | str) -> Recogniser:
        """Read what `save` wrote. Raises ArtifactError for a file that is missing, damaged or something else."""
        try:
            with np.load(Path(path), allow_pickle=False) as stored:
                phones = tuple(str(phone) for phone in stored["phones"])
                gaussians = Gaussians.of({name: stored[name] for name in Gaussians.NAMES})
                return cls(phones, gaussians, float(stored["entry_cost"]))
        except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise ArtifactError(f"{path} is no recogniser, or damaged ({error}); fit it again") from error


def _chain_states(chain: Sequence[int]) -> NDArray[np.int64]:
    """The states of a pause, a phone, a pause, …, a phone, a pause."""
    states = [0]
    for phone in chain:
        first = 1 + STATES * phone
        states += [*range(first, first + STATES), 0]
    return np.array(states)


def _batches(observed: Sequence[NDArray[np.float32]]) -> list[list[int]]:
    """Rows of clips of similar length, up to `FRAMES_AT_ONCE` frames together with padding."""
    batches: list[list[int]] = []
    for row in sorted(range(len(observed)), key=lambda row: len(observed[row])):
        # rows come from short to long, so that the newest row says how long all of its batch are padded to
        if not batches or (len(batches[-1]) + 1) * len(observed[row]) > FRAMES_AT_ONCE:
            batches.append([])
        batches[-1].append(row)
    return batches


def edit_distance(first: Sequence[str], second: Sequence[str]) -> int:
    """The least number of insertions, deletions and replacements that turn one sequence into the other."""
    distances = list(range(len(second) + 1))
    for row, left in enumerate(first, start=1):
        diagonal, distances[0] = distances[0], row
        for column, right in enumerate(second, start=1):
            replaced = diagonal + (left != right)
            diagonal = distances[column]
            distances[column] = min(replaced, distances[column] + 1, distances[column - 1] + 1)
    return distances[-1]
