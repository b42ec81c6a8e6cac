INSERT INTO eval_run
       (dataset_id, case_id, model, prompt_rev, output,
        pass, judge_score, judge_reason, latency_ms,
        input_tokens, output_tokens, cost_usd)
     VALUES ($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12)
