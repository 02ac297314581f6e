"""The simulator: the real head and the real node core on modelled machines and a virtual clock."""
