-- What workers that follow the log need, and what "what did I get wrong" is answered from.

-- The log is written in the order of seq, so that a few bytes per block range say where its end is. What was appended
-- last is not summarised yet, and always looked at.
CREATE INDEX agent_turns_seq ON agent_turns USING brin (seq) WITH (pages_per_range = 32, autosummarize = on);

CREATE INDEX agent_evals_bad ON agent_evals (turn_id) WHERE verdict = 'bad';

-- The planner takes no statistics from partial indexes: without these every repo and every tool would be half a percent
-- of the log to it, and a search among the turns of a large one would compare every vector.
CREATE STATISTICS agent_turns_repo_stats ON (payload ->> 'repo') FROM agent_turns;
CREATE STATISTICS agent_turns_tool_stats ON (payload ->> 'toolName') FROM agent_turns;
