-- iterative scan
-- lost: a filtered vector search returns fewer rows than its LIMIT
-- way out: {pgvector}
CREATE EXTENSION IF NOT EXISTS vector;

-- The library must be loaded: before, any setting with its prefix is taken.
SELECT '[1]'::vector;

SELECT count(*) = 3
  FROM pg_settings
 WHERE name IN ('hnsw.iterative_scan', 'hnsw.max_scan_tuples', 'hnsw.scan_mem_multiplier');
