"""Hooks of `Algorithm` that an earlier version called under another name are refused when a subclass defines them."""

import pytest

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.training.loop import Algorithm


@pytest.mark.parametrize(
    ("old", "new"), [("begin", "start"), ("ended", "finished"), ("due", "evaluation_due"), ("frozen", "frozen_modules")]
)
def test_a_hook_of_an_earlier_version_is_refused_with_its_new_name(old, new):
    with pytest.raises(ConfigError, match=rf"Mine\.{old}\(\) is no longer called; rename it to {new}\(\)"):
        type("Mine", (Algorithm,), {old: lambda self: None})
