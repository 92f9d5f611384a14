"""Terms that listen, in a reward graph over a codec whose codes are phones: decoded once, guarded, refused for text."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from support import checked, planned, said
from synthetic_audio import RATE, say

from rlhf_lab.core.errors import ArtifactError, ConfigError, DataError
from rlhf_lab.core.types import Corpus, Pair
from rlhf_lab.packs.speech.reward_models.recogniser import build as fit_stage
from rlhf_lab.packs.speech.reward_models.settings import RecogniserStage
from rlhf_lab.packs.speech.rewards import acoustic, acoustic_rm, intelligibility, wav2vec2
from rlhf_lab.packs.speech.rewards.acoustic_rm import FeatureModel, Standardiser, new_network
from rlhf_lab.packs.speech.rewards.clips import features_of
from rlhf_lab.packs.speech.rewards.settings import AcousticModel, HandWeighted, IntelligibilityTerm, SpeechEncoder
from rlhf_lab.packs.speech.rewards.wav2vec2 import SpeechModel, SpeechScorer, load_trunk
from rlhf_lab.packs.speech.sound.codec import StreamRenderer
from rlhf_lab.packs.speech.sound.features import NAMES
from rlhf_lab.packs.speech.sound.stream import write_stream
from rlhf_lab.rewards.checked import CheckedReward
from rlhf_lab.rewards.graph import GraphReward
from rlhf_lab.rewards.settings import RewardGraph

PHONES = "aeious_"
CLEAR, MUMBLED, SILENT = 0, 1, 2


class PhoneCodec:
    """Codec: codebook 0 is a phone, codebook 1 its style. Counts the clips it decodes."""

    sizes = (len(PHONES), 3)
    rate = RATE

    def __init__(self):
        self.decoded = []

    def decode(self, codes_TK):
        self.decoded.append(codes_TK.tolist())
        if not len(codes_TK):
            return np.zeros(0, dtype=np.float32)
        manner = int(codes_TK[0, 1])
        phones = "".join(PHONES[code] for code in codes_TK[:, 0])
        if manner == SILENT:
            return np.zeros(4000, dtype=np.float32)
        if manner == MUMBLED:
            phones = "u" * len(phones)
        return say(phones, np.random.default_rng(len(phones))).samples_N


def stream(phones, manner=CLEAR):
    return write_stream(np.array([[PHONES.index(phone), manner] for phone in phones]))


def texts(count, seed):
    rng = np.random.default_rng(seed)
    return ["".join(rng.choice(list("aeious"), rng.integers(5, 8))) for _ in range(count)]


@pytest.fixture(scope="module")
def corpus():
    splits = {}
    for split, count, seed in (("train", 40, 0), ("test", 8, 1)):
        said_texts = texts(count, seed)
        splits[split] = [Pair(f"{split} {text}", stream(text), stream(text, MUMBLED)) for text in said_texts]
    metadata = {pair.prompt: {"text": pair.prompt.split()[1]} for pairs in splits.values() for pair in pairs}
    renderer = StreamRenderer(PhoneCodec())
    return Corpus("toy", splits["train"], splits["test"], "", metadata=metadata, renderer=renderer)


def run_on(corpus, directory=None, **needs):
    run = SimpleNamespace(data=corpus, needs=needs, device="cpu", directory=directory, notes=[])
    run.note = run.notes.append
    return run


@pytest.fixture(scope="module")
def recogniser(corpus, tmp_path_factory):
    """(directory, metrics) of the stage that fits the guard's recogniser."""
    directory = tmp_path_factory.mktemp("recogniser")
    result = fit_stage(RecogniserStage(max_clips=40, heldout_pairs=8), run_on(corpus, directory)).finish()
    return str(directory), result.metrics


def ask(corpus, pairs, responses):
    columns = [corpus.metadata[pair.prompt]["text"] for pair in pairs]
    return said([pair.prompt for pair in pairs], responses, text=columns)


def test_the_recogniser_stage_hears_what_is_clear(recogniser):
    _, metrics = recogniser
    assert metrics["phone_error/chosen"].mean < 0.25
    assert metrics["phone_error/rejected"].mean > 0.6
    assert metrics["phone_error/other"].mean > 0.5
    assert metrics["clips"] == 40


def test_the_guard_lets_a_clear_clip_pass_and_refuses_a_mumbled_one(corpus, recogniser):
    """A hand weight on voiced sound alone would prefer the mumbled clip, which prolongs a vowel."""
    settings = IntelligibilityTerm(floor=-0.5, below=-9.0, weight=0.0)
    guard = intelligibility.build(settings, run_on(corpus, recogniser=recogniser[0]))
    voiced = HandWeighted(weights={"voiced_fraction": 1.0}, clips=40)
    terms = {
        "acoustic": CheckedReward("acoustic", acoustic.build(voiced, run_on(corpus))),
        "intelligibility": CheckedReward("intelligibility", guard),
    }
    graph = GraphReward(terms, RewardGraph(terms={"acoustic": voiced, "intelligibility": settings}))
    pair = next(pair for pair in corpus.test if "s" in pair.prompt.split()[1])
    responses = [pair.chosen, pair.rejected, stream("aeiou", SILENT), "no stream"]
    batch = graph(ask(corpus, [pair] * 4, responses))
    clear, mumbled, *_ = batch.parts["acoustic"]
    assert mumbled > clear
    assert batch.total_N[0] == clear
    assert batch.total_N[1:].tolist() == [-9, -9, -9]
    assert batch.parts["intelligibility"][0] > -0.5 > batch.parts["intelligibility"][1]
    assert batch.parts["intelligibility"][2:].tolist() == [-1, -1]


def test_a_graph_decodes_each_distinct_reply_once(corpus, recogniser, tmp_path):
    codec = PhoneCodec()
    own = replace(corpus, renderer=StreamRenderer(codec))
    features_N7 = features_of(corpus.renderer, [pair.chosen for pair in corpus.train])
    FeatureModel(Standardiser.fit(features_N7, NAMES), new_network(7, 8, seed=0)).save(tmp_path / "mlp", {})
    SpeechModel(SpeechScorer(load_trunk("", seed=0), frozen=True), "cpu").save(tmp_path / "trunk")
    run = run_on(own, recogniser=recogniser[0], acoustic_rm=str(tmp_path / "mlp"), wav2vec2=str(tmp_path / "trunk"))
    modules = {acoustic: HandWeighted(clips=8), acoustic_rm: AcousticModel(), wav2vec2: SpeechEncoder()}
    modules[intelligibility] = IntelligibilityTerm()
    settings = {module.__name__.rpartition(".")[2]: chosen for module, chosen in modules.items()}
    built = [module.build(chosen, run) for module, chosen in modules.items()]
    terms = {name: CheckedReward(name, reward) for name, reward in zip(settings, built, strict=True)}
    codec.decoded.clear()  # the hand weights are standardised on clips of the corpus
    graph = GraphReward(terms, RewardGraph(terms=settings))
    pairs = own.test[:3]
    episodes = ask(own, [*pairs, pairs[0]], [*(pair.chosen for pair in pairs), pairs[0].chosen])
    batch = graph(episodes)
    assert len(codec.decoded) == len({pair.chosen for pair in pairs})
    assert batch.total_N[3] == batch.total_N[0]
    expected = sum(batch.parts[name] for name in settings)
    assert batch.total_N == pytest.approx(expected)
    assert {f"acoustic/{name}" for name in HandWeighted().weights} <= batch.parts.keys()
    graph(episodes)
    assert len(codec.decoded) == len({pair.chosen for pair in pairs})


def test_features_are_measured_once(monkeypatch):
    measured = []
    monkeypatch.setattr(
        "rlhf_lab.packs.speech.rewards.clips.extract",
        lambda clip: measured.append(clip) or np.arange(7.0) + clip.seconds,
    )

    class Lengths:
        sizes = (8,)

        def render(self, responses):
            return [SimpleNamespace(seconds=float(response)) for response in responses]

    renderer = Lengths()
    assert features_of(renderer, ["1", "2", "1"])[:, 0].tolist() == [1, 2, 1]
    assert features_of(renderer, ["2", "3"])[:, 6].tolist() == [8, 9]
    assert len(measured) == 3
    assert features_of(renderer, []).shape == (0, 7)
    features_of(Lengths(), ["1"])
    assert len(measured) == 4  # another renderer makes other audio


def test_what_is_silent_is_worth_what_is_stated(corpus):
    term = acoustic.build(HandWeighted(silent=-4.5, clips=20), run_on(corpus))
    scores = term(["p"] * 3, [corpus.train[0].chosen, stream("aei", SILENT), ""]).total_N
    assert scores[1:].tolist() == [-4.5, -4.5]
    assert scores[0] > -4.5


def test_what_a_clip_has_to_say_is_stated_by_its_row():
    assert intelligibility.target_phones({"text": "ta ko"}, "p") == list("tako")
    with pytest.raises(DataError, match="has no column text"):
        intelligibility.target_phones({"answer": "4"}, "p")


def test_folders_that_hold_something_else(corpus, tmp_path):
    cases = [
        (acoustic_rm, AcousticModel(), "acoustic_rm", "acoustic_reward.json"),
        (wav2vec2, SpeechEncoder(), "wav2vec2", "speech_encoder.json"),
        (intelligibility, IntelligibilityTerm(), "recogniser", "recogniser.npz"),
    ]
    for module, settings, role, file in cases:
        with pytest.raises(ConfigError, match=rf"needs\.{role}=.* has no {file}"):
            module.build(settings, run_on(corpus, **{role: str(tmp_path)}))
        (tmp_path / file).write_text("no model")
        with pytest.raises(ArtifactError, match="damaged"):
            module.build(settings, run_on(corpus, **{role: str(tmp_path)}))


@pytest.mark.parametrize("term", ["acoustic", "acoustic_rm", "wav2vec2", "intelligibility"])
def test_terms_and_stages_that_listen_need_speech(term):
    role = {"intelligibility": "recogniser"}.get(term, term)
    needs = [] if term == "acoustic" else [f"+needs.{role}=owner/name"]
    with pytest.raises(ConfigError, match=f"reward={term} needs responses that are audio.*data=.*speech"):
        checked("grpo", f"reward={term}", "needs.reward=null", *needs)
    stage = {"intelligibility": "recogniser", "wav2vec2": "wav2vec2_reward"}.get(term, "acoustic_reward")
    with pytest.raises(ConfigError, match=f"algorithm={stage} needs responses that are audio.*data=.*speech"):
        checked("reward_model", f"algorithm={stage}", "needs.policy=null")


def test_a_recipe_may_name_models_of_rewards_that_it_does_not_choose():
    needs = ["+needs.acoustic_rm=tts_reward", "+needs.recogniser=tts_recogniser", "needs.reward=null"]
    speech = ["data=speech_small", "model=codec", *needs]
    stage = planned("grpo", "reward=acoustic", *speech, "needs.policy=owner/model")
    assert set(stage.needs) == {"policy"}
    stage = planned("grpo", "reward=[acoustic_rm,intelligibility]", *speech, "needs.policy=owner/model")
    assert {role: need.kind for role, need in stage.needs.items() if role != "policy"} == {
        "acoustic_rm": "acoustic_reward",
        "recogniser": "recogniser",
    }
    # they read what the stage wrote into its directory
    assert stage.sources()["acoustic_rm"] == str(stage.needs["acoustic_rm"].directory)
    with pytest.raises(ConfigError, match=r"needs\.acoustic_rm is not set"):
        planned("grpo", "reward=acoustic_rm", "data=speech_small", "model=codec", "needs.reward=null")
