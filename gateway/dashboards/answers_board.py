"""The dashboard of the answers: cache, guard rules, drift of what models answer, and rollouts."""

from typing import Final

from gateway.dashboards.panels import Dashboard, Panel, Query, Row, Threshold, quantile

CACHE: Final = Row(
    "Answer cache",
    (
        Panel(
            "Look-ups",
            "Requests that the cache might have answered, by what it had.",
            (Query('sum by (result) (rate(tidegate_cache_lookups_total{tenant=~"$tenant"}[$__rate_interval]))', "{{result}}"),),
            "requests/s",
            "stacked",
            empty_until="a policy has an answer cache (cache)",
        ),
        Panel(
            "Hits",
            "Share of the look-ups that were answered.",
            (
                Query(
                    'sum(rate(tidegate_cache_lookups_total{result!="miss", tenant=~"$tenant"}[$__rate_interval])) / '
                    'sum(rate(tidegate_cache_lookups_total{tenant=~"$tenant"}[$__rate_interval]))',
                    "hits",
                ),
            ),
            "ratio",
            most=1,
            empty_until="a policy has an answer cache (cache)",
        ),
        Panel(
            "Saved",
            "Dollars an hour that hits would have cost more at an engine.",
            (Query('sum(rate(tidegate_cache_saved_nanousd_total{tenant=~"$tenant"}[$__rate_interval])) * 3600 / 1e9', "saved"),),
            "usd/h",
            empty_until="a policy has an answer cache (cache)",
        ),
        Panel(
            "Passed by the cache",
            "Requests that the cache may not answer, and answers that were not kept, by reason (docs/reference/cache.md).",
            (
                Query('sum by (reason) (rate(tidegate_cache_bypassed_total{tenant=~"$tenant"}[$__rate_interval]))', "bypassed: {{reason}}"),
                Query('sum by (reason) (rate(tidegate_cache_not_kept_total{tenant=~"$tenant"}[$__rate_interval]))', "not kept: {{reason}}"),
            ),
            "requests/s",
            empty_until="a policy has an answer cache (cache)",
        ),
        Panel(
            "Lost by its stores",
            "Answers and questions that were evicted, or that a store was away for.",
            (
                Query("sum by (reason) (rate(tidegate_cache_store_losses_total[$__rate_interval]))", "answers: {{reason}}"),
                Query("sum by (reason) (rate(tidegate_cache_index_losses_total[$__rate_interval]))", "questions: {{reason}}"),
            ),
            "per second",
            empty_until="a policy has an answer cache (cache)",
        ),
    ),
)

GUARDS: Final = Row(
    "Guard rules",
    (
        Panel(
            "Verdicts",
            "Requests under guard rules, by what the rules said of request and answer in all.",
            (Query('sum by (verdict) (rate(tidegate_guard_verdicts_total{tenant=~"$tenant"}[$__rate_interval]))', "{{verdict}}"),),
            "requests/s",
            "stacked",
            empty_until="a policy has guard rules",
        ),
        Panel(
            "Findings by rule",
            "A rule on trial has the mode shadow: compare it here before it is enforced.",
            (Query('sum by (rule, mode) (rate(tidegate_guard_findings_total{tenant=~"$tenant"}[$__rate_interval]))', "{{rule}} {{mode}}"),),
            "per second",
            empty_until="a guard rule finds something",
        ),
        Panel(
            "Rules that could not judge",
            "Requests and answers that a rule could not judge, whether they passed or not.",
            (Query('sum by (rule) (rate(tidegate_guard_failures_total{tenant=~"$tenant"}[$__rate_interval]))', "{{rule}}"),),
            "per second",
            empty_until="a guard rule fails",
        ),
        Panel(
            "Questions to detectors",
            "Questions by what became of them; open is a breaker, busy is no place in time.",
            (
                Query(
                    "sum by (detector, result) (rate(tidegate_guard_detector_questions_total[$__rate_interval]))", "{{detector}} {{result}}"
                ),
            ),
            "per second",
            empty_until="a guard rule asks a detector",
        ),
        Panel(
            "Time of a detector's answer",
            "The mean of the questions that were asked.",
            (
                Query(
                    "sum by (detector) (rate(tidegate_guard_detector_seconds_total[$__rate_interval])) / "
                    'sum by (detector) (rate(tidegate_guard_detector_questions_total{result="answered"}[$__rate_interval]))',
                    "{{detector}}",
                ),
            ),
            "seconds",
            empty_until="a guard rule asks a detector",
        ),
    ),
)

DRIFT: Final = Row(
    "Drift",
    (
        Panel(
            "Declined",
            "Share of the whole answers that the model or a filter refused to give. A step after a change of the model is a change of it.",
            (
                Query(
                    'sum by (model) (rate(tidegate_answers_total{result="declined", model=~"$model"}[$__rate_interval])) / '
                    'sum by (model) (rate(tidegate_answers_total{model=~"$model"}[$__rate_interval]))',
                    "{{model}}",
                ),
            ),
            "ratio",
            most=1,
        ),
        Panel(
            "Length of answers",
            "Median and 95th percentile of the completion tokens of whole answers.",
            (
                Query(
                    quantile(0.5, "tidegate_answer_tokens", "model", 'model=~"$model"'),
                    "p50 {{model}}",
                ),
                Query(
                    quantile(0.95, "tidegate_answer_tokens", "model", 'model=~"$model"'),
                    "p95 {{model}}",
                ),
            ),
            "count",
        ),
        Panel(
            "Languages of answers",
            "Sampled answers by language.",
            (Query('sum by (language) (rate(tidegate_answer_languages_total{model=~"$model"}[$__rate_interval]))', "{{language}}"),),
            "per second",
            "stacked",
            empty_until="the settings sample languages (metrics.language_share)",
        ),
        Panel(
            "Surprisal of answers",
            "The median of minus the mean log-probability of an answer's tokens, in nats. It rises when a model is less sure of its words.",
            (
                Query(
                    quantile(0.5, "tidegate_answer_surprisal_nats", "model", 'model=~"$model"'),
                    "{{model}}",
                ),
            ),
            "count",
            empty_until="a caller asks for log-probabilities",
        ),
    ),
)

ROLLOUTS: Final = Row(
    "Rollouts",
    (
        Panel(
            "Share of the canary",
            "Share of the conversations that the canary answers (live), and of the requests that are mirrored to it.",
            (Query("tidegate_rollout_share_ratio", "{{rollout}} {{traffic}}"),),
            "ratio",
            most=1,
            empty_until="a rollout is active",
        ),
        Panel(
            "Difference to the baseline",
            "The confidence interval of each metric's difference: it is worse once low is above what the rollout allows.",
            (Query("tidegate_rollout_difference_ratio", "{{rollout}} {{metric}} {{bound}}"),),
            "ratio",
            empty_until="a rollout is active",
        ),
        Panel(
            "Judgement",
            "1 worse, 0 undecided, -1 good enough.",
            (Query("tidegate_rollout_judgement", "{{rollout}} {{metric}}"),),
            "count",
            "bars",
            (Threshold(1),),
            empty_until="a rollout is active",
        ),
        Panel(
            "Changes the gateway made",
            "Steps, holds and rollbacks, under the names of the audit.",
            (Query("sum by (change) (increase(tidegate_rollout_changes_total[$__rate_interval]))", "{{change}}"),),
            "count",
        ),
    ),
)

RATINGS: Final = Row(
    "Ratings and the judge",
    (
        Panel(
            "Ratings by callers",
            "Ratings of answers that callers gave.",
            (Query("sum by (rating) (increase(tidegate_feedback_total[$__rate_interval]))", "{{rating}}"),),
            "count",
            "bars",
            empty_until="a caller rates an answer",
        ),
        Panel(
            "Scores by the judge",
            "The mean score of each model's answers, 1 to 5.",
            (
                Query(
                    " + ".join(
                        f'{score} * sum by (model) (rate(tidegate_judge_scores_total{{score="{score}"}}[$__rate_interval]))'
                        for score in (1, 2, 3, 4, 5)
                    ).join(("(", ")"))
                    + " / sum by (model) (rate(tidegate_judge_scores_total[$__rate_interval]))",
                    "{{model}}",
                ),
            ),
            "count",
            most=5,
            empty_until="the settings name a judge, and a tenant's policy asks for it",
        ),
        Panel(
            "Comparisons for rollouts",
            "Pairs of answers by the better arm; swayed is a verdict that followed the order in which the judge read them.",
            (Query("sum by (better) (increase(tidegate_judge_pairs_total[$__rate_interval]))", "{{better}}"),),
            "count",
            "bars",
            empty_until="a rollout asks for the metric judged",
        ),
        Panel(
            "Agreement of the judge",
            "The share of the labelled cases on which the judge agreed when that was measured last.",
            (Query("min by (model, kind) (tidegate_judge_agreement_ratio)", "{{model}} {{kind}}"),),
            "ratio",
            most=1,
            empty_until="the settings have judge.agreement_every_days",
        ),
        Panel(
            "Samples of the judge",
            "What became of the requests that the judge looked at.",
            (Query("sum by (outcome) (increase(tidegate_judge_samples_total[$__rate_interval]))", "{{outcome}}"),),
            "count",
            empty_until="the settings name a judge",
        ),
    ),
)

ANSWERS: Final = Dashboard(
    "tidegate-answers",
    "Tidegate: answers",
    "What the cache saved, what guard rules found, whether models answer as they did, how answers are rated, and how rollouts stand.",
    (CACHE, GUARDS, DRIFT, RATINGS, ROLLOUTS),
)
