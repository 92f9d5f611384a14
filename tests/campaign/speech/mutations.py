"""Faults of the codec and of acoustic features."""

from __future__ import annotations

from anchors import Mutant

MUTANTS = (
    Mutant(
        "pitch_half_a_step_high",
        "Codec.frames",
        "pitch_T - 1",
        "pitch_T",
        "decoded speech is higher than what was said",
    ),
    Mutant(
        "fine_codebook_of_whole_envelopes",
        "Codec.quantise",
        "nearest(frames.envelope_TD - self.envelopes[coarse_T], self.residuals)",
        "nearest(frames.envelope_TD, self.residuals)",
        "the fourth codebook adds noise instead of detail",
    ),
    Mutant(
        "aperiodicity_rounded_down",
        "Codec.quantise",
        "np.sqrt(np.array(PERIODICITIES[1:]) * np.array(PERIODICITIES[:-1]))",
        "np.array(PERIODICITIES[1:])",
        "breathy voices are coded as clear ones",
    ),
    Mutant(
        "stability_across_silence",
        "features._stability",
        "sounding_T[1:] & sounding_T[:-1]",
        "sounding_T[1:]",
        "speech with pauses looks unstable",
    ),
    Mutant(
        "dynamics_of_pauses",
        "features.extract",
        "short_time.level_T[sounding_T].std()",
        "short_time.level_T.std()",
        "pauses pass for lively speech",
    ),
    Mutant(
        "pitch_in_natural_logs",
        "features._pitch_sd",
        "np.log2(f0_V)",
        "np.log(f0_V)",
        "all speech is 31 % more monotone",
    ),
)
