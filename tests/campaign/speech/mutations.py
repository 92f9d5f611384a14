"""Faults of the codec and of acoustic features."""

from __future__ import annotations

from anchors import read_mutants

MUTANTS = read_mutants("""
pitch_half_a_step_high in Codec.frames
    decoded speech is higher than what was said
    - pitch_T - 1
    + pitch_T
fine_codebook_of_whole_envelopes in Codec.quantise
    the fourth codebook adds noise instead of detail
    - nearest(frames.envelope_TD - self.envelopes[coarse_T], self.residuals)
    + nearest(frames.envelope_TD, self.residuals)
aperiodicity_rounded_down in Codec.quantise
    breathy voices are coded as clear ones
    - np.sqrt(np.array(PERIODICITIES[1:]) * np.array(PERIODICITIES[:-1]))
    + np.array(PERIODICITIES[1:])
stability_across_silence in features._stability
    speech with pauses looks unstable
    - sounding_T[1:] & sounding_T[:-1]
    + sounding_T[1:]
dynamics_of_pauses in features.extract
    pauses pass for lively speech
    - short_time.level_T[sounding_T].std()
    + short_time.level_T.std()
pitch_in_natural_logs in features._pitch_sd
    all speech is 31 % more monotone
    - np.log2(f0_V)
    + np.log(f0_V)
""")
