# conda is a function of site.sh here.
