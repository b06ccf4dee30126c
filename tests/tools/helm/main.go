// Helm's own linter and template engine for the test of our chart: `helm lint CHART`, and
// `helm template CHART RELEASE NAMESPACE`; further words are values, as of --set-json. The whole helm command links
// its registries, repositories and clients, too, and takes nearly twice as long to build.
package main

import (
	"fmt"
	"os"
	"path"
	"slices"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"helm.sh/helm/v4/pkg/strvals"
)

func values(words []string) (map[string]any, error) {
	found := map[string]any{}
	for _, word := range words {
		if err := strvals.ParseJSON(word, found); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// What `helm lint --strict` says: warnings are errors.
func linted(chart string, words []string) error {
	given, err := values(words)
	if err != nil {
		return err
	}
	found := lint.RunAll(chart, given, "default")
	for _, message := range found.Messages {
		fmt.Println(message)
	}
	if found.HighestSeverity >= support.WarningSev {
		return fmt.Errorf("%s: the chart has faults", chart)
	}
	return nil
}

func rendered(folder, release, namespace string, words []string) error {
	given, err := values(words)
	if err != nil {
		return err
	}
	chart, err := loader.Load(folder)
	if err != nil {
		return err
	}
	options := common.ReleaseOptions{Name: release, Namespace: namespace, Revision: 1, IsInstall: true}
	all, err := util.ToRenderValues(chart, given, options, common.DefaultCapabilities)
	if err != nil {
		return err
	}
	files, err := engine.Render(chart, all)
	if err != nil {
		return err
	}
	names := []string{}
	for name := range files {
		if path.Base(name) != "NOTES.txt" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Printf("---\n# Source: %s\n%s\n", name, files[name])
	}
	return nil
}

func main() {
	err := fmt.Errorf("helm: lint CHART, or template CHART RELEASE NAMESPACE; then NAME=JSON...")
	switch words := os.Args[1:]; {
	case len(words) >= 2 && words[0] == "lint":
		err = linted(words[1], words[2:])
	case len(words) >= 4 && words[0] == "template":
		err = rendered(words[1], words[2], words[3], words[4:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
