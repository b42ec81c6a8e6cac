-- What does this dataset hold? Without a version, the newest.
SELECT d.id, d.name, d.version, d.case_ids, d.notes, d.published_at, everyturn_dataset_hash(d.case_ids) AS hash
  FROM eval_dataset d
 WHERE d.name = :'name'::text
   AND (:'version'::int IS NULL OR d.version = :'version'::int)
 ORDER BY d.version DESC
 LIMIT 1;
