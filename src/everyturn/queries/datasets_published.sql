-- Which datasets are there, and when was each last replayed? The newest first.
-- dataset   only the versions of this name; may be NULL

SELECT d.id, d.name, d.version, cardinality(d.case_ids) AS cases, d.published_at, d.notes, last.replayed_at
  FROM eval_dataset d
  LEFT JOIN LATERAL (
       SELECT max(p.started_at) AS replayed_at
         FROM eval_replay p
        WHERE p.dataset_id = d.id) AS last ON true
 WHERE :'dataset'::text IS NULL OR d.name = :'dataset'::text
 ORDER BY d.published_at DESC, d.name, d.version DESC
 LIMIT :'limit'::bigint;
