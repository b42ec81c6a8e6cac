SELECT model, prompt_rev,
       count(*)            AS n,
       avg(pass::int)::numeric(4,3) AS pass_rate,
       avg(judge_score)::numeric(4,3) AS mean_score,
       sum(cost_usd)::numeric(8,2)   AS run_cost
FROM eval_run r
JOIN eval_dataset d ON d.id = r.dataset_id
WHERE d.name = 'core' AND d.version = 4
GROUP BY model, prompt_rev
ORDER BY pass_rate DESC
