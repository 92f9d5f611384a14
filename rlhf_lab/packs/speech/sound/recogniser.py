"""Hidden Markov model recogniser of phones, which measures how well a clip says its reference phones.

It guards a speech reward: optimised speech may become steadier and more voiced, but less intelligible. The recogniser
reads only samples, so it is independent of the gold reward of a world, which reads codes or renderer parameters. A
phone has three states in sequence, and the pause has one. The model of a state is a Gaussian over 13 mel-frequency
cepstral coefficients and their slopes. The recogniser has no phone context, no language model and no mixtures.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_lab.core.errors import ArtifactError, DataError
from rlhf_lab.core.files import replacing
from rlhf_lab.core.media import Audio
from rlhf_lab.packs.speech.sound.audio import SILENCE_DBFS, loudest_dbfs
from rlhf_lab.packs.speech.sound.frame_grid import without_offset
from rlhf_lab.packs.speech.sound.spectrum import spectra
from rlhf_lab.packs.speech.sound.viterbi import JUMP, forced_path, free_path

COEFFICIENTS = 13
SLOPE_FRAMES = 2
"""Number of frames on each side of a frame that determine its slopes (Furui 1986)."""
SILENCE_AROUND = 0.05
"""Seconds of silence added before and after a clip, so that every clip has a pause."""
DYNAMIC_RANGE = 40.0
"""Dynamic range of mel levels in dB. Lower levels are raised to this range below the clip's maximum, so that digital
silence and faint noise give the same pause."""
PRIOR_FRAMES = 20
"""Pseudo-count that smooths variances: the variance of a state is estimated as if it had this many more frames, whose
variance is the mean over all states. Without them, the variance of states with few frames would be too small."""


def observe(audio: Audio) -> NDArray[np.float32]:
    """Return MFCC 0–12 of each frame and their slopes, (T, 26). They do not depend on loudness or a constant filter.

    The mean over the sounding frames of the clip is subtracted from coefficients 1–12 (Atal 1974). The maximum of the
    clip is subtracted from coefficient 0.
    """
    from scipy import fft

    # added before the spectra are computed, so that the observations include the silence
    around = np.zeros(round(SILENCE_AROUND * audio.rate), np.float32)
    measured = spectra(Audio(np.concatenate([around, without_offset(audio.samples_N), around]), audio.rate))
    levels_TM = measured.mel_levels_TM()
    levels_TM = np.maximum(levels_TM, levels_TM.max() - DYNAMIC_RANGE)
    mfcc_TC = fft.dct(levels_TM, type=2, axis=1, norm="ortho")[:, :COEFFICIENTS]
    # relative level: the loudest frame has coefficient 0 equal to 0
    mfcc_TC[:, 0] -= mfcc_TC[:, 0].max()
    # cepstral mean subtraction removes a constant filter, such as a microphone
    if measured.sounding_T.any():
        mfcc_TC[:, 1:] -= mfcc_TC[measured.sounding_T, 1:].mean(axis=0)
    return np.concatenate([mfcc_TC, _slopes(mfcc_TC)], axis=1).astype(np.float32)


def _slopes(values_TC: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the slope of the regression line through the frames around each frame. The first and last frame repeat."""
    count = len(values_TC)
    # the first and the last frame are repeated, so that all frames have a slope
    padded_TC = np.pad(values_TC, ((SLOPE_FRAMES, SLOPE_FRAMES), (0, 0)), mode="edge")
    offsets = range(-SLOPE_FRAMES, SLOPE_FRAMES + 1)
    total_TC = np.zeros_like(values_TC)
    for offset in offsets:
        total_TC += offset * padded_TC[SLOPE_FRAMES + offset : SLOPE_FRAMES + offset + count]
    return total_TC / sum(offset**2 for offset in offsets)


@dataclass(frozen=True, eq=False)
class Gaussians:
    """Diagonal Gaussians of S states over whitened observations.

    Attributes:
        whitening_DD: matrix that whitens observations: their covariance within states becomes the unit matrix.
        means_SD: mean of whitened observations in each state.
        variances_SD: variance of whitened observations in each state; covariances are assumed to be 0.
    """

    whitening_DD: NDArray[np.float64]
    means_SD: NDArray[np.float64]
    variances_SD: NDArray[np.float64]

    @classmethod
    def fit(cls, observed_TD: NDArray[np.float32], state_T: NDArray[np.int64], states: int) -> Gaussians:
        """Fit means and variances to the frames of each state. Raises DataError for a state without frames."""
        count_S1 = np.bincount(state_T, minlength=states)[:, None]
        if not count_S1.all():
            state = int(np.argmin(count_S1))
            raise DataError(
                f"state {state} of {states} has no frames; provide clips that contain it (state 0 is the pause)"
            )
        rows_TD = observed_TD.astype(np.float64)
        means_SD = _sums(rows_TD, state_T, states) / count_S1
        within_TD = rows_TD - means_SD[state_T]
        covariance_DD = within_TD.T @ within_TD / len(rows_TD)
        # a small diagonal keeps the matrix invertible if some directions do not vary, as in clips of few spectra
        smallest = 1e-6 * np.trace(covariance_DD) / len(covariance_DD) + 1e-9
        covariance_DD += smallest * np.eye(len(covariance_DD))
        # the inverse of the Cholesky factor whitens the covariance within states
        whitening_DD = np.linalg.inv(np.linalg.cholesky(covariance_DD)).T
        squares_SD = _sums((within_TD @ whitening_DD) ** 2, state_T, states)
        # after whitening the mean variance is 1, so each prior frame adds a square of 1
        variances_SD = (squares_SD + PRIOR_FRAMES) / (count_S1 + PRIOR_FRAMES)
        return cls(whitening_DD, means_SD @ whitening_DD, variances_SD)

    def logps(self, observed_TD: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the log-density of whitened observations under each state in nats, (T, S)."""
        white_TD = observed_TD @ self._float32_whitening
        squares_SD, products_SD, constant_S = self._expanded
        return np.square(white_TD) @ squares_SD.T + white_TD @ products_SD.T + constant_S

    @cached_property
    def _float32_whitening(self) -> NDArray[np.float32]:
        return self.whitening_DD.astype(np.float32)

    @cached_property
    def _expanded(self) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """Factors of x² and of x, and the constant of Σ −½ (x − μ)² / v − ½ log 2πv.

        The expansion reduces the log-density to two matrix products.
        """
        precisions_SD = 1 / self.variances_SD
        products_SD = self.means_SD * precisions_SD
        log_norm_SD = np.log(2 * np.pi * self.variances_SD)
        constant_S = -0.5 * (self.means_SD * products_SD + log_norm_SD).sum(axis=1)
        squares_SD = -0.5 * precisions_SD
        return squares_SD.astype(np.float32), products_SD.astype(np.float32), constant_S.astype(np.float32)


def _sums(values_TD: NDArray[np.float64], state_T: NDArray[np.int64], states: int) -> NDArray[np.float64]:
    """Return the sum over the frames of each state, (S, D)."""
    sums_SD = np.zeros((states, values_TD.shape[1]))
    np.add.at(sums_SD, state_T, values_TD)
    return sums_SD


PAUSE = "_"
"""Name of the pause. Reference phones may contain it; it is ignored there."""
STATES = 3
"""Number of states of a phone: start, middle and end. Hence a phone lasts 30 ms or longer."""
FRAMES_AT_ONCE = 16384
"""Maximum number of frames that are decoded together. A few hundred states then need about 50 MB."""


@dataclass(frozen=True)
class IntelligibilityScores:
    """Agreement of N clips with their reference phones.

    Attributes:
        phone_error_N: edit distance between recognised and reference phones, per reference phone. 0 means no errors.
            Silence has 1, and additional wrong phones give more than 1.
        heard: recognised phones of each clip, without pauses.
    """

    phone_error_N: NDArray[np.float64]
    heard: list[list[str]]


@dataclass(frozen=True, eq=False)
class Recogniser:
    """Phones and the Gaussians of their states. Created by `fit_recogniser` or `Recogniser.load`.

    Attributes:
        phones: names of the phones, without the pause.
        gaussians: Gaussians of the state of the pause, followed by three states of each phone.
        entry_cost: cost of starting a phone in nats. Without it, changes within a phone are recognised as phones.
    """

    phones: tuple[str, ...]
    gaussians: Gaussians
    entry_cost: float

    def compare(self, clips: Sequence[Audio], reference_phones: Sequence[Sequence[str]]) -> IntelligibilityScores:
        """Compare each clip with its reference phones.

        Raises DataError for a phone that the recogniser does not know, and for a clip without reference phones.
        """
        chains = phone_indices(self.phones, reference_phones)
        if len(clips) != len(chains):
            raise DataError(f"{len(clips)} clips and {len(chains)} sequences of phones; pass one sequence per clip")
        heard = self.transcribe([observe(clip) for clip in clips])
        # observations are relative to the loudest frame of a clip, so that phones are found in silence too
        silent = [loudest_dbfs(clip) < SILENCE_DBFS for clip in clips]
        recognised = [[] if is_silent else phones for is_silent, phones in zip(silent, heard, strict=True)]
        errors = []
        for hypothesis, chain in zip(recognised, chains, strict=True):
            reference = [self.phones[phone] for phone in chain]
            # per reference phone, so that long and short texts are comparable
            errors.append(edit_distance(hypothesis, reference) / len(reference))
        return IntelligibilityScores(np.array(errors), recognised)

    def transcribe(self, observed: Sequence[NDArray[np.float32]]) -> list[list[str]]:
        """Return the phones that are recognised in observations (T, D), without pauses."""
        states = 1 + STATES * len(self.phones)
        # phone p has the states 1 + 3p, 2 + 3p and 3 + 3p
        is_start_S = np.arange(states) % STATES == 1
        is_end_S = np.arange(states) % STATES == 0
        is_start_S[0] = True  # the pause has only state 0, which is both its start and its end
        entry_cost_S = np.full(states, self.entry_cost, np.float32)
        entry_cost_S[0] = 0
        # results are stored by row, because batches are ordered by length
        recognised: list[list[str]] = [[] for _ in observed]
        for rows in _batches(observed):
            lengths_B = np.array([len(observed[row]) for row in rows])
            logps_BTS = np.zeros((len(rows), lengths_B.max(), states), np.float32)
            for position, row in enumerate(rows):
                logps_BTS[position, : lengths_B[position]] = self.gaussians.logps(observed[row])
            path = free_path(logps_BTS, lengths_B, is_start_S, is_end_S, entry_cost_S)
            for position, row in enumerate(rows):
                states_T = path.state_BT[position, : lengths_B[position]]
                # the first frame and each jump start a phone or a pause
                begins_T = path.came_BT[position, : lengths_B[position]] == JUMP
                begins_T[0] = True
                recognised[row] = [self.phones[(state - 1) // STATES] for state in states_T[begins_T] if state]
        return recognised

    def align(
        self, observed: Sequence[NDArray[np.float32]], chains: Sequence[Sequence[int]]
    ) -> list[NDArray[np.int64]]:
        """Align clips with their phones. Returns the state of each frame.

        Pauses are allowed before, between and after phones.
        """
        models = [_chain_states(chain) for chain in chains]
        aligned = [np.zeros(0, np.int64)] * len(observed)
        for rows in _batches(observed):
            lengths_B = np.array([len(observed[row]) for row in rows])
            ends_B = np.array([len(models[row]) - 1 for row in rows])
            # chains have different lengths; −inf marks states after the end of a chain
            shape = (len(rows), lengths_B.max(), ends_B.max() + 1)
            logps_BTS = np.full(shape, -np.inf, np.float32)
            may_skip_BS = np.zeros((len(rows), shape[2]), bool)
            for position, row in enumerate(rows):
                model = models[row]
                logps_TS = self.gaussians.logps(observed[row])
                logps_BTS[position, : lengths_B[position], : len(model)] = logps_TS[:, model]
                may_skip_BS[position, : len(model)] = model == 0  # pauses are optional
            path = forced_path(logps_BTS, lengths_B, may_skip_BS, ends_B)
            for position, row in enumerate(rows):
                aligned[row] = models[row][path.state_BT[position, : lengths_B[position]]]
        return aligned

    def save(self, path: Path | str) -> None:
        """Write a .npz file of arrays atomically."""
        with replacing(Path(path)) as temporary, temporary.open("wb") as handle:
            own: dict[str, Any] = {"phones": np.array(self.phones), "entry_cost": np.float64(self.entry_cost)}
            np.savez(handle, **own, **asdict(self.gaussians))

    @classmethod
    def load(cls, path: Path | str) -> Recogniser:
        """Read a recogniser written by `save`.

        Raises ArtifactError if the file is missing, damaged or no recogniser.
        """
        try:
            with np.load(Path(path), allow_pickle=False) as stored:
                phones = tuple(str(phone) for phone in stored["phones"])
                gaussians = Gaussians(*(stored[field.name] for field in fields(Gaussians)))
                return cls(phones, gaussians, float(stored["entry_cost"]))
        except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise ArtifactError(f"{path} is not a recogniser, or it is damaged ({error}); fit it again") from error


def phone_indices(names: Sequence[str], reference_phones: Sequence[Sequence[str]]) -> list[list[int]]:
    """Return the indices of phones in `names`, without pauses. Raises DataError as `Recogniser.compare` does."""
    position_of = {phone: position for position, phone in enumerate(names)}
    chains = []
    for row, phones in enumerate(reference_phones):
        unknown = [phone for phone in phones if phone not in position_of and phone != PAUSE]
        if unknown:
            raise DataError(
                f"clip {row}: unknown phone {unknown[0]!r}; the recogniser was fitted to: {' '.join(names)}"
            )
        chains.append([position_of[phone] for phone in phones if phone != PAUSE])
        if not chains[-1]:
            raise DataError(f"clip {row} has no reference phones; provide one or more phones")
    return chains


def _chain_states(chain: Sequence[int]) -> NDArray[np.int64]:
    """Return the states of a chain: a pause, a phone, a pause, …, a phone, a pause."""
    states = [0]
    for phone in chain:
        first = 1 + STATES * phone
        states += [*range(first, first + STATES), 0]
    return np.array(states)


def _batches(observed: Sequence[NDArray[np.float32]]) -> list[list[int]]:
    """Return batches of clips of similar length, each with up to `FRAMES_AT_ONCE` frames including padding."""
    batches: list[list[int]] = []
    for row in sorted(range(len(observed)), key=lambda row: len(observed[row])):
        # rows are sorted by length, so the newest row sets the padded length of its batch
        if not batches or (len(batches[-1]) + 1) * len(observed[row]) > FRAMES_AT_ONCE:
            batches.append([])
        batches[-1].append(row)
    return batches


def edit_distance(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the minimum number of insertions, deletions and replacements between two sequences (Levenshtein)."""
    # only one row of the table is stored; `diagonal` is the value of the previous row and column
    distances = list(range(len(second) + 1))
    for row, left in enumerate(first, start=1):
        diagonal, distances[0] = distances[0], row
        for column, right in enumerate(second, start=1):
            replaced = diagonal + (left != right)
            diagonal = distances[column]
            distances[column] = min(replaced, distances[column] + 1, distances[column - 1] + 1)
    return distances[-1]


ITERATIONS = 8
"""Number of fits and alignments after the flat start."""
ENTRY_COSTS = (0.0, 3.0, 6.0, 10.0, 15.0, 20.0, 30.0, 45.0)
"""Candidate entry costs: costs in nats of starting a phone, of which the fit selects one."""
CLIPS_FOR_COST = 300
"""Approximate number of clips on which the entry costs are compared."""
QUIET = 0.75
"""Threshold of the flat start between the loudest (0) and the quietest frame (1); quieter frames are pauses."""


def fit_recogniser(clips: Sequence[Audio], phones: Sequence[Sequence[str]]) -> Recogniser:
    """Fit a recogniser of all phones that occur, without their times. The fit is deterministic and needs no seed.

    Flat start: each phone gets an equal part of the sounding frames of a clip. Then two steps alternate (Viterbi
    training; Rabiner 1989, section VI): the Gaussians are fitted to the frames of each state, and the frames are
    aligned again.

    Args:
        phones: phones of each clip; pauses (`PAUSE`) are optional, because the alignment finds them.

    Raises DataError if a clip is too short for its phones, or if the numbers of clips and sequences differ.
    """
    # sorted, so that the order of phones does not depend on the order of clips
    names = tuple(sorted({str(phone) for sequence in phones for phone in sequence} - {PAUSE}))
    if len(clips) != len(phones) or not names:
        raise DataError(
            f"{len(clips)} clips, {len(phones)} sequences of phones with {len(names)} phones in total; pass one "
            "sequence per clip"
        )
    observed = [observe(clip) for clip in clips]
    states = 1 + STATES * len(names)
    chains = phone_indices(names, phones)
    for row, (rows_TD, chain) in enumerate(zip(observed, chains, strict=True)):
        if len(rows_TD) < STATES * len(chain):
            raise DataError(
                f"clip {row} has {len(rows_TD)} frames of 10 ms, including the added silence, but its {len(chain)} "
                f"phones need {STATES * len(chain)}; leave it out"
            )
    everything_TD = np.concatenate(observed)
    starts = [_flat_start(rows_TD, chain) for rows_TD, chain in zip(observed, chains, strict=True)]
    state_T = np.concatenate(starts)
    # entry costs are 0 here: in a forced alignment they would be the same for all paths
    for _ in range(ITERATIONS):
        recogniser = Recogniser(names, Gaussians.fit(everything_TD, state_T, states), 0.0)
        state_T = np.concatenate(recogniser.align(observed, chains))
    gaussians = Gaussians.fit(everything_TD, state_T, states)
    return Recogniser(names, gaussians, _best_entry_cost(names, gaussians, observed, chains))


def _flat_start(rows_TD: NDArray[np.float32], chain: Sequence[int]) -> NDArray[np.int64]:
    """Return the initial states of frames. Sounding frames are split evenly among phones; the others are pauses."""
    chain_states = np.concatenate([1 + STATES * phone + np.arange(STATES) for phone in chain])
    # coefficient 0 is the mean level relative to the loudest frame; its minimum is in the added silence
    level_T = rows_TD[:, 0]
    positions = np.flatnonzero(level_T > QUIET * level_T.min())
    if len(positions) < len(chain_states):  # each state needs a frame, so quiet frames are used as well
        positions = np.arange(len(rows_TD))
    states_T = np.zeros(len(rows_TD), np.int64)
    states_T[positions] = chain_states[np.arange(len(positions)) * len(chain_states) // len(positions)]
    return states_T


def _best_entry_cost(
    names: tuple[str, ...],
    gaussians: Gaussians,
    observed: Sequence[NDArray[np.float32]],
    chains: Sequence[Sequence[int]],
) -> float:
    """Return the entry cost with the minimum number of errors on a subset of the clips; the lowest one in a tie."""
    # every n-th clip, so that the subset is spread over all clips
    every = max(1, len(observed) // CLIPS_FOR_COST)
    reference_phones = [[names[phone] for phone in chain] for chain in chains[::every]]
    errors = []
    for cost in ENTRY_COSTS:
        recognised = Recogniser(names, gaussians, cost).transcribe(observed[::every])
        pairs = zip(recognised, reference_phones, strict=True)
        errors.append(sum(edit_distance(hypothesis, reference) for hypothesis, reference in pairs))
    return ENTRY_COSTS[int(np.argmin(errors))]
