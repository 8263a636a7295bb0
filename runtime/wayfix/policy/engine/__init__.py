"""The engine policy: exported graphs on onnxruntime, with numpy for everything around them."""
