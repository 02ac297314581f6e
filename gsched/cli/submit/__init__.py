"""What gsub reads: options, directives and scripts, and the job it makes of them."""
