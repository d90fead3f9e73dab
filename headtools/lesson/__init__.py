"""What the notebooks show and ask.

::

    claims.py           claim(), ledger()        a sentence whose number is checked; a claim of others, weighed
    figure.py           figure(), style()        a picture with a caption and a description; the house style
    draw.py             subplots(), heatmap(), head_grid() … the few drawings the lessons repeat
    words.py            compare_words()          sentences under one another, changes marked
    explore.py          explore()                controls over a picture that stays readable without a kernel
    attention_view.py   attention_view()         bertviz without a network; frame.py is its page
    check.py            check()                  exercises that explain; the exercises stand in exercises/
    summary.py          check.summary()          which of them you have passed; answered.py is the file that knows it
"""
