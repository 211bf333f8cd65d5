"""What lets a launch command be judged without a device: a faked torch.xpu, and configs of the real models."""
