"""Its trainer: two optimizers, a warm start that steps them, and a count of its own."""

import torch
from torch import nn


class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizers = [torch.optim.Adam(part.parameters(), lr=1e-2) for part in (model.module[0], model.module[2])]
        for optimizer in self.optimizers:
            optimizer.step()  # no gradients: changes nothing, but a counter of optimizer steps would count it
        self.global_step = 0

    def backward(self, inputs):
        loss = nn.functional.mse_loss(self.model(inputs), inputs.sum(1, keepdim=True))
        loss.backward()
        return loss

    def optimizer_step(self):
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.global_step += 1
