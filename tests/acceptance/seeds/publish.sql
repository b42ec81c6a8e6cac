WITH picked AS (
  SELECT id, captured_at FROM eval_case
  WHERE captured_at >= '2026-04-01'
    AND NOT ('superseded' = ANY(tags))
)
INSERT INTO eval_dataset (name, version, case_ids, notes)
SELECT 'core', 4,
       array_agg(id ORDER BY captured_at),
       'Q2 2026 baseline, includes the 1284 long-context regression'
FROM picked
