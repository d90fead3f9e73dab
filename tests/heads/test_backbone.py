"""What is recorded without computing logits is what is recorded with them, bit for bit."""

from headtools.heads.record import backbone

from .zoo import zoo_model


def test_a_model_of_one_s_own_runs_whole():
    model, batch = zoo_model("llama")
    assert backbone(model, batch) is model.model

    class Mine(type(model)):
        pass

    mine = Mine(model.config)
    assert backbone(mine, batch) is mine
    assert backbone(model, ["input_ids", "labels"]) is model
