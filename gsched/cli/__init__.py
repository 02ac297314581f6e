"""One package per task (commands, submit, show, local), and what all commands share."""
