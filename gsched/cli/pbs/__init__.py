"""The commands of Torque and OpenPBS under their own names, with their formats."""
