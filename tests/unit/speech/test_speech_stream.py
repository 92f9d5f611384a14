"""Round trip of a clip through the text of a response."""

import numpy as np
import pytest

from rlhf_lab.packs.speech.sound.stream import all_words, read_stream, write_stream


def test_the_stream_of_two_frames_and_three_codebooks():
    """Codebook k of frame t stands in column t + k: columns (1,·,·) (4,2,·) (·,5,3) (·,·,6)."""
    text = write_stream(np.array([[1, 2, 3], [4, 5, 6]]))
    assert text == "a1 b. c. a4 b2 c. a. b5 c3 a. b. c6"


@pytest.mark.parametrize("codebooks", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("frames", [1, 2, 5, 30])
def test_a_stream_is_read_back(codebooks, frames):
    codes_TK = np.random.default_rng(frames).integers(0, 64, (frames, codebooks))
    text = write_stream(codes_TK)
    assert len(text.split()) == (frames + codebooks - 1) * codebooks
    np.testing.assert_array_equal(read_stream(text, codebooks), codes_TK)


def test_a_stream_that_is_cut_anywhere_has_its_whole_frames():
    codes_TK = np.arange(15).reshape(5, 3)
    words = write_stream(codes_TK).split()
    for length in range(len(words) + 1):
        # frame t is complete with its last code, at position (t + K − 1)·K + K − 1
        full = sum((t + 2) * 3 + 2 < length for t in range(5))
        np.testing.assert_array_equal(read_stream(" ".join(words[:length]), 3), codes_TK[:full])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a1 c. b.", "word 2 of the stream is 'c.'; expected a code of codebook 'b'"),
        ("a1 b2", "word 2 of the stream is 'b2'; expected the empty word b."),
        ("a. b.", "word 1 of the stream is 'a.'; expected a code of codebook 'a'"),
        ("a1 b. a2 b.", "word 4 of the stream is 'b.'; expected a code of codebook 'b'"),
        ("a1 b. a. b2 a3", "word 5 of the stream is 'a3'; expected the empty word a."),
        ("a99999999999999999999", "word 1 of the stream is 'a99999999999999999999'"),
        ("a1 hello", "word 2 of the stream is 'hello'"),
    ],
)
def test_what_is_no_stream_is_refused_by_word(text, message):
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        read_stream(text, 2)


def test_words_of_all_codebooks():
    assert all_words((2, 1)) == ["a.", "a0", "a1", "b.", "b0"]


def test_a_clip_without_frames_has_no_stream():
    with pytest.raises(ValueError, match="one or more frames"):
        write_stream(np.zeros((0, 4), dtype=np.int64))
