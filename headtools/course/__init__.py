"""What the notebooks show and ask.

::

    catalogue/          01.toml …                   what stands beside a lesson's code: captions, expected numbers
    figure.py           figure(), style()           a picture with a caption and a description; the house style
    measured.py         measured()                  a sentence whose numbers are compared with those measured here
    predict.py          predict()                   a question before the measurement; the caption repeats the answer
    plot.py             plot.heads(), plot.maps() … the drawings that lessons repeat; role_map.py
    claims.py           ledger()                    what others write, with two verdicts
    pictures.py                                     how scores, sites, roles and verifications show in a notebook
    explore.py          explore()                   controls over a picture that can be read without a kernel
    attention_view.py   attention_view()            bertviz without a network; frame.py is its page
    check.py            check()                     exercises that explain; the exercises stand in exercises/
    attention_probe.py  attention_probe()           syntactic heads of words, predicted from all maps together
    real_model.py       live()                      a step once more on a real model, where it is on this machine
    summary.py          check.summary()             which of them you have passed; answered.py is the file that knows it
"""
