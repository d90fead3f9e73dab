"""The exercises of each lesson, ``lesson_NN.py``: what is asked and how an answer is judged, never the solution."""
