"""The user's side of terminal sessions: gsub -I, gattach and gshell."""
