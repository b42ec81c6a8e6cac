-- What was read of the transcripts of Claude Code: how far each file, and which of their lines are in the log.

CREATE TABLE claude_code_files (
    id         uuid PRIMARY KEY,
    path       text NOT NULL,
    position   bigint NOT NULL,
    line       bigint NOT NULL,
    begun      boolean NOT NULL DEFAULT false,
    tail       text NOT NULL,
    state      jsonb NOT NULL,
    read_at    timestamptz NOT NULL DEFAULT now()
);

COMMENT ON TABLE claude_code_files IS 'Transcripts, known by their name and first line wherever they are.';
COMMENT ON COLUMN claude_code_files.position IS 'The offset up to which the file is in agent_turns.';
COMMENT ON COLUMN claude_code_files.line IS 'The number of the line that the position is in.';
COMMENT ON COLUMN claude_code_files.begun IS 'Whether that line was read before its line end was written.';
COMMENT ON COLUMN claude_code_files.tail IS 'A hash of the bytes before the position: other bytes mean another file.';
COMMENT ON COLUMN claude_code_files.state IS 'The conversations of the file as they stood: open calls, counted usage.';

-- A line is in the log once, whatever files repeat it.
CREATE TABLE claude_code_lines (
    key           uuid PRIMARY KEY,
    conversation  uuid NOT NULL
);

COMMENT ON COLUMN claude_code_lines.key IS 'A line of a conversation by its id, or of any conversation by id and content.';
