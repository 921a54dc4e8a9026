"""Policies: every query gets one decision, and the counts add up."""

import numpy as np
import pytest

from calibjax.abstention import RCS, features, policy
from calibjax.abstention.question_router import PipelineRouter, route, routed, text_features
from calibjax.errors import InputError
from calibjax.records import Hits


def test_the_threshold_itself_answers_and_inf_abstains_on_all():
    assert policy.decide([0.5, 0.4999], 0.5).tolist() == ["answer", "abstain"]
    assert policy.decide([1.0, 0.2], np.inf).tolist() == ["abstain", "abstain"]
    assert policy.decide([0.1], 0.5, below="escalate:judge").tolist() == ["escalate:judge"]


@pytest.mark.parametrize("below", ["", "escalate", "escalate:", "refuse"])
def test_an_unknown_policy_is_refused(below):
    with pytest.raises(InputError, match="below="):
        policy.decide([0.1], 0.5, below=below)


def test_escalation_goes_to_a_pipeline_that_exists():
    with pytest.raises(InputError, match="one of dense, judge"):
        policy.check_below("escalate:juge", ["dense", "judge"])


def test_rescue_counts_what_it_mends_and_what_it_breaks():
    confidence = [0.9, 0.8, 0.3, 0.2, 0.1, 0.05]
    success = [1, 0, 0, 1, 0, 0]
    second = [0, 1, 1, 0, 0, np.nan]
    found = policy.rescue(confidence, success, second, [9, 9, 1, 2, 3, np.nan], tau=0.5)
    assert found.n_flagged == 4 and found.n_failures == 4 and found.flagged_failures == 3
    assert (found.recovered, found.lost, found.net, found.n_unknown) == (1, 1, 0, 1)
    assert found.cost == 6.0 and found.cost_per_query == 1.0
    assert found.coverage == pytest.approx(2 / 6)
    # The unflagged queries keep their outcome, whatever the second pass would have done.
    assert found.success_before == found.success_after == pytest.approx(2 / 6)
    assert found.success_after - found.success_before == pytest.approx(found.net / found.n)


def test_the_second_pass_sees_flagged_queries_only():
    seen = []

    def second_pass(ids):
        seen.extend(ids)
        return [1.0] * len(ids), [2.0] * len(ids)

    success, cost = policy.run_rescue(["a", "b", "c"], [0.9, 0.1, 0.2], 0.5, second_pass)
    assert seen == ["b", "c"]
    assert np.isnan(success[0]) and success[1:].tolist() == [1, 1] and cost[1:].tolist() == [2, 2]


def test_the_gate_abstains_on_search_results_before_a_model_sees_them():
    lists = np.array([[0.9, 0.1], [0.2, 0.1]], np.float32)
    made = features(np.tile(lists, (20, 1)), question=["who is it"] * 40)
    rcs = RCS.fit(made, [1.0, 0.0] * 20)
    hits = Hits([["a", "b"], ["c", ""]], lists, np.array([[True, True], [True, False]]))
    confidence, decision = policy.gate(rcs, hits, ["who is it"] * 2, tau=0.5)
    assert decision.tolist() == ["answer", "abstain"]
    # A masked hit is no hit.
    alone = features([0.2], question="who is it")
    assert confidence[1] == pytest.approx(rcs.score(alone))


# ------------------------------------------------------------------------------------ router


def test_text_features_count_what_they_say():
    questions = ["Which film came first, Red Hill or Blue Lake?", "born in 1999, he sang"]
    assert text_features(questions)[:, 3:].tolist() == [[1, 0], [0, 1]]
    assert text_features(questions)[0, 1] == 2  # Red Hill, Blue Lake
    assert text_features(questions)[0, 2] >= 2  # first, or


def router_data():
    questions = ["Who is older, A or B?", "where was the writer of it born"] * 40
    compare = np.array([1.0, 0.0] * 40)
    return questions, {"judge": np.ones(80) * (1 - compare), "dense": compare}


def test_the_router_learns_which_pipeline_a_question_calls_for():
    questions, success = router_data()
    chooser = PipelineRouter.fit(questions, success)
    assert chooser.choose(questions[:2]) == ["dense", "judge"]


def test_ties_go_to_the_cheaper_pipeline():
    questions, success = router_data()
    always = {name: np.ones(80) for name in success}
    chooser = PipelineRouter.fit(questions, always, {"judge": 20.0, "dense": 0.0})
    assert chooser.pipelines == ("dense", "judge") and chooser.choose(["x"]) == ["dense"]


def test_routed_counts_add_up():
    actions = route([0.9, 0.1, 0.8], 0.5, ["dense", "dense", "judge"], below="escalate:judge")
    success = {"dense": np.array([1.0, 0, 0]), "judge": np.array([0, 1.0, 0])}
    found = routed(actions, success)
    assert found["counts"] == {"answer:dense": 1, "answer:judge": 1, "escalate:judge": 1}
    assert found["coverage"] == 1.0 and found["success_answered"] == pytest.approx(2 / 3)
    abstained = routed(route([0.9, 0.1, 0.8], 0.5, ["dense"] * 3), success)
    assert sum(abstained["counts"].values()) == 3
    assert abstained["coverage"] == pytest.approx(2 / 3)
