SELECT unnest(tags) AS tag, count(*) AS cases
FROM eval_case
WHERE id = ANY((SELECT case_ids FROM eval_dataset WHERE name='core' AND version=4)::uuid[])
GROUP BY 1
ORDER BY 2 DESC
