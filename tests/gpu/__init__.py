"""The main job on a real GPU: the daemon, NVIDIA's driver, and programs that compute."""
