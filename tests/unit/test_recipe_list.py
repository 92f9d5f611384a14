"""The list of recipes: every recipe once, in the group of what it makes, with its time."""

from __future__ import annotations

import pytest

from rlhf_lab.cli import recipe_list
from rlhf_lab.cli.recipe_list import DATA, GROUPS, MEASURE, POLICY, REWARD, START_HERE, STUDY, Cost, cost_of, grouped
from rlhf_lab.config import inventory
from rlhf_lab.core.console import console


def test_every_recipe_is_in_one_group_and_every_group_has_one_to_start_with():
    groups = grouped()
    names = [name for recipes in groups.values() for name in recipes]
    assert sorted(names) == sorted(inventory.recipes())
    assert list(groups) == list(GROUPS)
    for group, recipes in groups.items():
        # the recipe to start with may belong to a pack that was deleted
        assert len(set(START_HERE) & set(recipes)) == 1 or group == DATA, group


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("sft", POLICY),  # states no algorithm
        ("ppo_audited", POLICY),  # extends another recipe
        ("reward_model", REWARD),
        ("rm_report", MEASURE),
        ("pair_margins", DATA),
        ("study/kl_control", STUDY),
    ],
)
def test_the_group_of_a_recipe_is_what_its_algorithm_makes(name, group):
    assert recipe_list.group_of(name) == group


@pytest.mark.parametrize(
    ("stated", "cost"),
    [
        ("about two minutes on 2 cores", Cost(2, None)),
        ("about thirty-five minutes; study.size=quick: about six", Cost(35, 6)),
        ("not known", None),
    ],
)
def test_the_cost_is_read_from_words_and_digits(stated, cost):
    assert cost_of({"cost": stated}) == cost


def test_the_list_shows_groups_times_and_commands():
    with console.capture() as printed:
        recipe_list.print_recipes(["doctor: check the installation"])
    out = printed.get()
    assert all(group in out for group in GROUPS)
    line = next(line for line in out.splitlines() if line.startswith(" dpo_iterative "))
    assert "4 min" in line and "start here" in line
    assert out.rstrip().endswith("doctor: check the installation")
