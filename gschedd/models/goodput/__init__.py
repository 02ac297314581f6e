"""Pure: how fast and how efficiently a training job learns on GPUs of a type and number.

The records import no NumPy; evaluation and fitting do, when they are used (extra ``sia``).
"""
