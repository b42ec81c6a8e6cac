SELECT id, prompt, reference FROM eval_case WHERE id = ANY($1::uuid[])
