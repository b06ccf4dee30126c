package executor

// Lookup is what Kubernetes 1.34 asks of labels besides Has and Get.
func (g gjsonLabels) Lookup(label string) (string, bool) {
	return g.Get(label), g.Has(label)
}
