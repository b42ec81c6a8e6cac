-- What is still to be done of a part of a replay: which cases and trials have no run, or an output without a verdict?
--
-- first, last    the part: places among the replay's cases, from 1
-- retry_errors   whether runs that ended in an error are to be made again

SELECT t.trial, c.id, c.source, c.prompt, c.context, c.reference, c.tags, c.captured_at, c.captured_by, c.turn_id,
       c.content_hash, r.outcome, r.output, r.latency_ms, r.input_tokens, r.output_tokens, r.cost_usd, r.run_id, r.drift,
       r.judge_cost_usd
  FROM eval_replay p
 CROSS JOIN LATERAL unnest(p.case_ids[:'first'::int : :'last'::int]) WITH ORDINALITY AS m (id, place)
 -- One look-up for each case of the part, however the planner guesses its size.
 CROSS JOIN LATERAL (SELECT k.* FROM eval_case k WHERE k.id = m.id OFFSET 0) AS c
 CROSS JOIN LATERAL generate_series(1, p.trials) AS t (trial)
  LEFT JOIN eval_run r ON r.replay_id = p.id AND r.case_id = m.id AND r.trial = t.trial
 WHERE p.id = :'id'::uuid
   AND (r.id IS NULL OR r.outcome = 'unjudged' OR (:'retry_errors'::boolean AND r.outcome = 'error'))
 ORDER BY m.place, t.trial;
